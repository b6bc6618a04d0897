-- inspect.lua: the lock of the key on this node.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: the instance's settings
-- Returns: answer: "held", ms left, holder, number, owner, ms held or -1 | "free"
if not own then return { now, 'foreign' } end
return value and tell('held') or answer('free')
