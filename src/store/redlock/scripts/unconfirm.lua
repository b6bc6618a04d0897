-- unconfirm.lua: takes a confirmation back that no majority has given, unless somebody has been told of the number here since: its drawer is known again.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 token  2 name of the confirmation; the last one is the instance's settings
-- Returns: {now, "taken_back"} | {now, "nothing"}
local token, name = ARGV[1], ARGV[2]
local before, by = string.match(ours and value == token and since or '', '^(\n%d+ %S+) (%S+)$')
if by ~= name then return { now, 'nothing' } end
write(string.match(known, '^%+?'), { last, number, its_ttl, renewals, attempt, token, owner, before }, redis.call('PTTL', record))
return { now, 'taken_back' }
