-- force_release.lua: ends whoever holds the key on this node, a client on Redis with another type included.
-- KEYS: 1 lock  2 record (kept: the next fencing token has to be higher)  3 guard
-- ARGV: what the instance says
-- Returns: {now, "held", ms left, holder, fencing token, owner} | {now, "free"}
if kind == 'none' then return { now, 'free' } end
local left = redis.call('PTTL', lock)
free()
if value then mark_ended(value) end
return { now, 'held', left, value or '', ours and number or 0, ours and owner or '' }
