-- undo.lua: R4: takes back the vote for an attempt while it is open: it never was a lease.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 token  2 attempt; the last one is the instance's settings
-- Returns: answer: "undone" | "nothing"
local token, attempt = ARGV[1], ARGV[2]
if value ~= token or by ~= attempt then return answer('nothing') end
free()
return answer('undone')
