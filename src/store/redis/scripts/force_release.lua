-- force_release.lua: ends whoever holds the key, a client on Redis with another type included.
-- KEYS: 1 lock  2 record (kept: the next fencing token has to be higher)
-- ARGV: none
-- Returns: {now, "taken", ms left, fencing token, owner} | {now, "free"}
local left = redis.call('PTTL', lock)
if left == -2 then return { now, 'free' } end
local value = redis.pcall('GET', lock)
redis.call('DEL', lock)
local fence, _, token, owner = string.match(redis.call('GET', record) or '', '^(%d+) (%d+) (%S+) (.*)$')
local ours = value == token
return { now, 'taken', left, ours and tonumber(fence) or 0, ours and owner or '' }
