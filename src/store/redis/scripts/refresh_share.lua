-- refresh_share.lua: refresh.lua for every lease.
-- KEYS: 1 lock  2 record  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 longest time that a
--   lease lasts (ms)  5 fencing token of the lease, or empty  6 renewals that the keeper knows,
--   empty for a client  7 "1" for the keeper's last word  8 ttl (ms) of a lease that has none
--   9 fencing floor  10 latest believable time (us)
-- Returns: what refresh.lua does, with slots, and slot or 0, of a lease that shares its key
local not_after, token, ttl, max_hold, named, kept, last_word, default_ttl, floor, believable =
  unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
local own = lease_of(token)
local is_named = own and (named == '' or own.fence == tonumber(named))
if not is_named then return { now, 'lost' } end
if own.fence == 0 then -- A direct Redis client took the lock: its record begins.
  own.fence, own.ttl = next_fence(last, now_us, believable, floor), default_ttl
end
if is_taken_over(kept, last_word, own.renewals) then return { now, 'taken_over' } end
if kept == '' then own.renewals = own.renewals + 1 end
local asked = tonumber(ttl) or tonumber(own.ttl)
local most = term(now, asked, max_hold, own.since, own.left)
local sets_end = last_word == '1' or named ~= '' and kept == ''
if sets_end or most >= own.left then own.ttl, own.left = most, most end
if shared then
  redis.call('ZREM', line, '') -- Adds nothing; the rest runs at maxmemory.
  admit(token, own, own)
else
  redis.call('PEXPIRE', lock, own.left)
  last, its_ttl, renewals, since, holder, owner =
    own.fence, own.ttl, own.renewals, own.since, token, own.owner
end
save(own.left)
local cut = most < asked and 1 or 0
return { now, 'refreshed', own.fence, own.left, own.owner, own.renewals, cut, own.slots, own.slot }
