-- refresh_share.lua: refresh.lua for every lease.
-- KEYS: 1 lock  2 record  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 longest time that a
--   lease lasts (ms)  5 fencing token of the lease, or empty  6 who asks, as in refresh.lua
--   7 ttl (ms) of a lease that has none  8 fencing floor  9 latest believable time (us)
-- Returns: what refresh.lua does, with slots, units, and slot or 0, of a lease that shares its key
local not_after, token, ttl, max_hold, named, asks, default_ttl, floor, believable = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
local own = lease_of(token)
if not own then return { now, 'lost', 0 } end
local is_named = named == '' or own.fence == tonumber(named)
if not is_named then return { now, 'lost', own.fence } end
local is_kept = own.state == KEPT
if asks == '' and is_kept then return { now, 'kept', own.fence } end
if asks ~= '' and not is_kept then return { now, 'lost', 0 } end
if own.fence == 0 then -- A direct Redis client took the lock: its record begins.
  own.fence, own.ttl = next_fence(last, now_us, believable, floor), default_ttl
end
if asks ~= 'keeper' then own.state = HEARD end
local asked = tonumber(ttl) or tonumber(own.ttl)
local most = term(now, asked, max_hold, own.since, own.left)
own.ttl, own.left = renewed(asks, ttl, most, own.ttl, own.left)
if shared then
  redis.call('ZREM', line, '') -- Adds nothing; the rest runs at maxmemory.
  admit(token, own, own)
else
  redis.call('PEXPIRE', lock, own.left)
  last, its_ttl, state, since, holder, owner =
    own.fence, own.ttl, own.state, own.since, token, own.owner
end
save(own.left)
local cut = most < asked and 1 or 0
return { now, 'refreshed', own.fence, own.left, own.owner, cut, own.slots, own.units, own.slot }
