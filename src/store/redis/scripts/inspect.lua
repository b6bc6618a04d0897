-- inspect.lua: who holds the key, and whether a token does.
-- KEYS: 1 lock  2 record
-- ARGV: 1 token, empty if nobody asks for one
-- Returns: {now, "held", ms left, fencing token, owner, 1 if the token holds it} | {now, "free"}
local asked = ARGV[1]
local left = redis.call('PTTL', lock)
if left == -2 then return { now, 'free' } end
local value = redis.pcall('GET', lock) -- A table if a client on Redis keeps another type there.
local fence, _, token, owner = string.match(redis.call('GET', record) or '', '^(%d+) (%d+) (%S+) (.*)$')
local ours = value == token
return { now, 'held', left, ours and tonumber(fence) or 0, ours and owner or '', value == asked and 1 or 0 }
