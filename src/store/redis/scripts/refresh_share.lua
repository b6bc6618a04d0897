-- refresh_share.lua: refresh.lua for a lease that shares its lock.
-- KEYS: 1 lock  2 record  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 default ttl (ms)  5 fencing floor  6 latest believable time (us)  7 fencing token of the lease, or empty  8 renewals that the keeper knows, empty for a client  9 "1" for the keeper's last word  10 longest time that a lease lasts (ms), or empty
-- Returns: {now, "refreshed", fencing token, ms left, owner, renewals, 1 if the ttl was shortened, slots, slot or 0} | {now, "taken_over"} | {now, "lost"} | {now, "late"} | {now, "exclusive"}: the lock is not shared, and nothing was done
local not_after, token, ttl, _, _, _, named, kept, last_word, max_hold = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not shared then return { now, 'exclusive' } end
local all = sharing()
local own = all.lease(token)
if not own or named ~= '' and own.fence ~= tonumber(named) then return { now, 'lost' } end
if kept == '' then
  own.renewals = own.renewals + 1
else
  local span = last_word == '1' and 1 or TAKE_OVER
  if math.floor(own.renewals / span) ~= math.floor(kept / span) then return { now, 'taken_over' } end
end
local asked, left = tonumber(ttl == '' and own.ttl or ttl), own.ends - now
local most = capped(asked, own.since, max_hold, left)
if last_word == '1' or named ~= '' and kept == '' then own.ttl, own.left = most, most else own.ttl, own.left = extended(most, left, own.ttl) end
redis.call('PEXPIRE', record, own.left + DAY) -- Adds nothing; what follows then runs even at maxmemory.
all.admit(token, own, own)
return { now, 'refreshed', own.fence, own.left, own.owner, own.renewals, most < asked and 1 or 0, own.slots, own.slot }
