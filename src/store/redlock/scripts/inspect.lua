-- inspect.lua: the holder of the key on this node.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: the instance's settings
-- Returns: {now, "held", ms left, holder, fencing token, owner, ms held or -1, renewals} | {now, "free"} | {now, "blank" | "foreign"}
if not voting then return { now, silence } end
if kind == 'none' then return { now, 'free' } end
return { now, 'held', redis.call('PTTL', lock), value or '', ours and number or 0, ours and owner or '', held, ours and renewals or 0 }
