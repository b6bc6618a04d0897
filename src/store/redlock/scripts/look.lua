-- look.lua: a part of a walk over all locks of a voting node: how long the longest lives, and the highest fencing token.
-- KEYS: 1 guard
-- ARGV: 1 "1" if a restarted node is trusted  2 cursor  3 what locks begin with  4 what records begin with
-- Returns: {now, "seen", the guard's value, next cursor, ms left of the longest, highest fencing token} | {now, "blank"}
local trust, cursor, locks, records = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not voting(trust) then return { now, 'blank' } end
local page = redis.call('SCAN', cursor, 'COUNT', 500)
local longest, highest = 0, tonumber(base)
for _, name in ipairs(page[2]) do
  if string.sub(name, 1, #records) == records then
    local text = redis.call('TYPE', name).ok == 'string' and redis.call('GET', name)
    highest = math.max(highest, tonumber(string.match(text or '', '^%+?(%d+) ') or 0))
  elseif string.sub(name, 1, #locks) == locks then
    longest = math.max(longest, redis.call('PTTL', name))
  end
end
return { now, 'seen', guarded, page[1], longest, highest }
