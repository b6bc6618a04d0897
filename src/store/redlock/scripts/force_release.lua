-- force_release.lua: ends the lease of the key on this node, or a direct Redis client's value of any type.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 guard
-- ARGV: the instance's settings
-- Returns: {now, "held", ms left, holder, fencing token, owner, ms held or -1} | {now, "free"}
if kind == 'none' then return { now, 'free' } end
local left = redis.call('PTTL', lock)
free()
if value then mark_ended(value) end
return { now, 'held', left, value or '', ours and number or 0, ours and owner or '', held }
