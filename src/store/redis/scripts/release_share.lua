-- release_share.lua: release.lua for a lock that is shared; hands the key to the head of the line, or tells it that there may be room.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 line  4 crew  5 who  6 share  7 facts
-- ARGV: 1 token  2 time for which the next claim's place is kept (ms)  3 fencing token of the lease, or empty  4 renewals that the keeper knows, or "?<request>" for one that found its client gone, empty for another client  5 instance
-- Returns: {now, "lease", fencing token, owner, slots, slot or 0} | {now, "place"} | {now, "nothing"} | {now, "exclusive"}: the lock is not shared, and nothing was done
local token, keep, named, kept, instance = unpack(ARGV)
if not shared then return { now, 'exclusive' } end
local all = sharing()
local own = all.lease(token)
if named ~= '' and (not own or own.fence ~= tonumber(named)) then return { now, 'nothing' } end
local request = string.match(kept, '^%?(.*)')
local rest = request and own and without(request, own.since, own.renewals)
if rest and rest ~= '' then
  own.since, own.left = rest, own.ends - now
  all.admit(token, own, own)
end
if kept ~= '' and (not own or own.renewals ~= tonumber(kept)) and rest ~= '' then return { now, 'nothing' } end
if own then all.depart(token) end
local place = named == '' and marked and standing(token)
if place then
  end_elsewhere(token, instance)
  drop(token)
end
if value and not own and named == '' and kept == '' then give_up(token) end
if value then ring() else hand_on(tonumber(keep)) end
if not own then return { now, place and 'place' or 'nothing' } end
return { now, 'lease', own.fence, own.owner, own.slots, own.slot }
