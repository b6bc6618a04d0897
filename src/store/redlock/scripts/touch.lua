-- touch.lua: reads a node's guard, and gives one to a node that has none, or that has restarted and may have forgotten.
-- KEYS: 1 guard
-- ARGV: 1 "1" if a restarted node is trusted  2 nonce
-- Returns: {now, "guard", the guard's value}
local trust, nonce = ARGV[1], ARGV[2]
if not state or of ~= run and trust ~= '1' then
  guarded = string.format('b|%s|%s|%.0f', nonce, run, now)
  redis.call('SET', guard, guarded)
end
return { now, 'guard', guarded }
