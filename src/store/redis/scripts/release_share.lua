-- release_share.lua: release.lua for a lock that is shared; hands the key to the head of the line, or tells it that there may be room.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 token  2 time for which a place is kept (ms)  3 fencing token of the lease, or empty  4 renewals that the lease must have, empty for a client  5 instance  6 place that its claim gets back, or empty
-- Returns: {now, "lease", fencing token, owner, slots, slot or 0} | {now, "place"} | {now, "nothing"} | {now, "exclusive"}: the lock is not shared, and nothing was done
local token, keep, named, known_renewals, instance, place = unpack(ARGV)
if not shared then return { now, 'exclusive' } end
local all = sharing()
local own = all.lease(token)
if named ~= '' and not (own and own.fence == tonumber(named)) then return { now, 'nothing' } end
if known_renewals ~= '' and own.renewals ~= tonumber(known_renewals) then return { now, 'nothing' } end
if own then all.depart(token) end
local stood = named == '' and marked and standing(token)
if stood then
  end_elsewhere(token, instance)
  drop(token)
end
if place ~= '' then
  give_back(token, own.owner, place, keep)
  redis.call('SET', record, known, 'PX', math.max(redis.call('PTTL', record), DAY))
end
if value then ring() else hand_on(tonumber(keep)) end
if not own then return { now, stood and 'place' or 'nothing' } end
return { now, 'lease', own.fence, own.owner, own.slots, own.slot }
