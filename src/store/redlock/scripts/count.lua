-- count.lua: rule 11: makes a vote count that the node stored while it did not vote.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 token  2 attempt, which got its lease; the last one is the instance's settings
-- Returns: answer: "counts" | "nothing"
local token, attempt = ARGV[1], ARGV[2]
if value ~= token or by ~= '?' .. attempt then return answer('nothing') end
by = attempt
redis.call('PEXPIRE', record, DAY) -- Adds nothing; the rest runs at maxmemory.
write(redis.call('PTTL', lock))
return answer('counts')
