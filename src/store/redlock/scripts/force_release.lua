-- force_release.lua: ends the lease of the key on this node, or a direct Redis client's value of any type.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 guard
-- ARGV: 1 highest fencing token to end, or empty; the last one is the instance's settings
-- Returns: {now, "held", ms left, holder, fencing token, owner, ms held or -1} | {now, "free"}
local most = ARGV[1]
if kind == 'none' or most ~= '' and not (ours and number <= tonumber(most)) then return { now, 'free' } end
local left = redis.call('PTTL', lock)
free()
if value then mark_ended(value) end
return { now, 'held', left, value or '', ours and number or 0, ours and owner or '', held }
