-- refresh_share.lua: refresh.lua for a lease that shares its key.
-- KEYS: 1 lock  2 record  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 unused  5 unused
--   6 unused  7 longest time that a lease lasts (ms)  8 fencing token of the lease, or empty
--   9 renewals that the keeper knows, empty for a client  10 "1" for the keeper's last word
-- Returns: what refresh.lua does, but "exclusive" for "shared"
local not_after, token, ttl, _, _, _, max_hold, named, kept, last_word = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not shared then return { now, 'exclusive' } end
local own = lease_of(token)
local is_named = own and (named == '' or own.fence == tonumber(named))
if not is_named then return { now, 'lost' } end
if is_taken_over(kept, last_word, own.renewals) then return { now, 'taken_over' } end
if kept == '' then own.renewals = own.renewals + 1 end
local asked = tonumber(ttl ~= '' and ttl or own.ttl)
local most = term(now, asked, max_hold, own.since, own.left)
local sets_end = last_word == '1' or named ~= '' and kept == ''
if sets_end or most >= own.left then own.ttl, own.left = most, most end
redis.call('PEXPIRE', record, own.left + DAY) -- Adds nothing; what follows runs even at maxmemory.
admit(token, own, own)
local cut = most < asked and 1 or 0
return { now, 'refreshed', own.fence, own.left, own.owner, own.renewals, cut, own.slots, own.slot }
