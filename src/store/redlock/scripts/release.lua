-- release.lua: rule 10: ends what a token has. Of what is known to have ended, `highest`
--   stays above the number: a late vote is behind.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms), or empty  2 token, empty for a direct Redis client's  3 number, or empty
--   for any  4 "1" if all of the token's up to this number has ended; the last one is the
--   instance's settings
-- Returns: answer: "ended", number, owner | "has", as refresh.lua: another number of the token |
--   "held", as inspect.lua | "free" | {now, "late"}
local not_after, token, named, has_ended = unpack(ARGV)
if not_after ~= '' and now > tonumber(not_after) then return { now, 'late' } end
local fence = tonumber(named)
local is_its = value == token or token == '' and value and holder == '-'
local is_meant = not fence or number == fence or has_ended == '1' and number < fence
if has_ended == '1' then highest, ended = math.max(highest, fence + 1), fence end
if is_its and is_meant then
  local said = answer('ended', number, owner)
  if number > 0 and has_ended ~= '1' then ended = number end
  free()
  return said
end
if has_ended == '1' then
  redis.call('PEXPIRE', record, DAY) -- Adds nothing; the rest runs at maxmemory.
  write(redis.call('PTTL', lock))
end
if is_its then return tell_vote(redis.call('PTTL', lock)) end
return value and tell('held') or answer('free')
