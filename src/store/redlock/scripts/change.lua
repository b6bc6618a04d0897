-- change.lua: changes a node's guard if nothing has happened to it since it was read.
-- KEYS: 1 guard
-- ARGV: 1 "1" if a restarted node is trusted  2 the guard as it was read  3 the guard as it shall be
-- Returns: {now, "changed"} | {now, "other"}
local trust, before, after = ARGV[1], ARGV[2], ARGV[3]
if guarded ~= before or of ~= run and trust ~= '1' then return { now, 'other' } end
redis.call('SET', guard, after)
return { now, 'changed' }
