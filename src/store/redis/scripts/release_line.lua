-- release_line.lua: release.lua where claims may wait, or leases share the key; runs after
--   share.lua. Hands the key to the head of the line, or tells it that there may be room.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 line  4 crew  5 who
--   6 share  7 facts
-- ARGV: those of release.lua
-- Returns: what release.lua does | {now, "place"}
redis.call('ZREM', line, '') -- Adds nothing; the rest runs at maxmemory.
keep = tonumber(keep)
local own, ends_place = lease_of(token), named == '' or not shared
local is_named = named == '' or own and own.fence == tonumber(named)
local is_unrenewed = unrenewed == '' or own and own.renewals == tonumber(unrenewed)
local stands = ends_place and standing(token)
if not (is_named and is_unrenewed and (own or stands)) then return { now, 'nothing' } end
if own and shared then depart(token) end
if stands then
  end_elsewhere(token, stands, instance)
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
return { now, 'lease', own.fence, own.owner, own.slots, own.slot }
