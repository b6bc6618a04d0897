-- refresh_share.lua: refresh.lua for a lease that shares its lock.
-- KEYS: 1 lock  2 record  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 not after (ms)  2 asked at the earliest (ms)  3 asked at the latest (ms)  4 token  5 ttl (ms), or empty for the last one  6 default ttl (ms)  7 retention beyond the ttl (ms)  8 fencing floor  9 latest believable time (us)  10 fencing token of the lease, or empty  11 renewals that the keeper knows, empty for a client  12 "1" for the keeper's last word  13 longest time that a lease lasts (ms), or empty  14 name of the request
-- Returns: {now, "refreshed", fencing token, ttl (ms), owner, renewals, 1 if the ttl was shortened, slots, slot or 0, 1 if the lease is in doubt} | {now, "taken_over"} | {now, "lost"} | {now, "late"} | {now, "exclusive"}: the lock is not shared, and nothing was done
local not_after, asked, _, token, ttl, _, retention, _, _, named, kept, last_word, max_hold, request = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not shared then return { now, 'exclusive' } end
local all = sharing()
local own = all.lease(token)
if not own or named ~= '' and own.fence ~= tonumber(named) then return { now, 'lost' } end
local doubt = 0
if kept == '' then
  own.since, doubt = doubted(own.since, own.renewals, own.renewals + 1, asked, request)
  own.renewals = own.renewals + 1
else
  local span = last_word == '1' and 1 or TAKE_OVER
  if math.floor(own.renewals / span) ~= math.floor(kept / span) then return { now, 'taken_over' } end
end
ttl = tonumber(ttl ~= '' and ttl or own.ttl)
local most = capped(ttl, own.since, max_hold, own.ends - now)
own.ttl, own.left = renewed(most, asked, own.ends - now, last_word ~= '1' and own.ttl)
redis.call('PEXPIRE', record, own.left + retention) -- Adds nothing; what follows then runs even at maxmemory.
all.admit(token, own, own)
return { now, 'refreshed', own.fence, own.left, own.owner, own.renewals, most < ttl and 1 or 0, own.slots, own.slot, doubt }
