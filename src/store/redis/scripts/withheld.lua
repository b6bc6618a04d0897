-- withheld.lua: the rights to the calls that a rights.lua lists, of each store; runs after it.
-- KEYS: none
-- ARGV: none
-- Returns: the missing rights, as in an ACL
local missing = {}
for _, call in ipairs(calls) do
  local answer = redis.pcall(unpack(call))
  local why = type(answer) == 'table' and answer.err or ''
  -- The words of Redis 6.2 and 7.0, of later ones and Valkey, and for a command without its name.
  local is_missing = string.find(why, "executing the script can't", 1, true)
    or string.find(why, 'ACL failure in script', 1, true)
    or string.find(why, 'nknown [%a ]*command called')
  local right = '+' .. string.lower(call[1])
  if string.find(why, 'access', 1, true) then right = '~lk//*' end
  if string.find(why, 'channel', 1, true) then right = '&lk//*' end
  if is_missing then missing[#missing + 1] = right end
end
return missing
