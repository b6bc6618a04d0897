-- release_line.lua: release.lua where claims may wait, or leases share the key; runs after
--   share.lua. Hands the key to the head of the line, or tells it that there may be room.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 line  4 crew  5 who
--   6 share  7 facts
-- ARGV: those of release.lua
-- Returns: what release.lua does | {now, "place"} | {now, "torn"}, as line.lua
if not line then return { now, 'torn' } end
redis.call('ZREM', line, '') -- Adds nothing; the rest runs at maxmemory.
keep = tonumber(keep)
local own = lease_of(token)
local is_named = named == '' or own and own.fence == tonumber(named)
local is_unheard = unheard == '' or own and own.state ~= HEARD
local stands = named == '' and standing(token)
if not (is_named and is_unheard and (own or stands)) then
  return { now, 'nothing', own and own.fence or 0 }
end
would_end = tonumber(would_end)
if would_end and would_end > now then -- It is only let go, and ends when that one would have.
  own.state, own.left = HEARD, math.min(own.left, would_end - now)
  if shared then
    admit(token, own, own)
  else
    redis.call('PEXPIRE', lock, own.left)
    state = HEARD
  end
  save(own.left)
  return { now, 'nothing', 0 }
end
if own and shared then depart(token) end
if stands then
  tell_its_instance(token, stands, instance, ' released')
  drop(token)
end
if returned ~= '' then give_back(token, own.owner, tonumber(returned), keep) end
if not value or value == token then
  hand_on(keep)
elseif shared then
  ring()
end
save_mark()
if not own then return { now, 'place' } end
return { now, 'lease', own.fence, own.owner, own.slots, own.units, own.slot }
