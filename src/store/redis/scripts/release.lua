-- release.lua: gives up the lease of a token; touches nobody else's.
-- KEYS: 1 lock  2 record (kept: the next fencing token has to be higher)
-- ARGV: 1 token
-- Returns: {now, "lease", fencing token, owner} | {now, "nothing"}
local token = ARGV[1]
if redis.pcall('GET', lock) ~= token then return { now, 'nothing' } end
redis.call('DEL', lock)
local fence, _, record_token, owner = string.match(redis.call('GET', record) or '', '^(%d+) (%d+) (%S+) (.*)$')
local ours = record_token == token
return { now, 'lease', ours and tonumber(fence) or 0, ours and owner or '' }
