-- release.lua: R10: ends what a token has. Of what is known to have ended, `highest`
--   stays above the number: a late vote is behind.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms), or empty  2 token, empty for a direct Redis client's  3 number, or empty
--   for any  4 "lease" if the lease of this number has ended and all of its token before, "all" if
--   the token has nothing up to this number, of whichever lease that is; the last one is the
--   instance's settings
-- Returns: answer: "ended", number, owner | "has", as refresh.lua: another number of the token |
--   "held", as inspect.lua | "free" | {now, "late"}
local not_after, token, named, has_ended = unpack(ARGV)
local is_told = has_ended ~= ''
if not_after ~= '' and now > tonumber(not_after) then return { now, 'late' } end
local fence = tonumber(named)
local is_its = value == token or token == '' and value and holder == '-'
local is_meant = not fence or number == fence or is_told and number < fence
if is_told then highest = math.max(highest, fence + 1) end
if has_ended == 'lease' then ended = fence end
if is_its and is_meant then
  local said = answer('ended', number, owner)
  if number > 0 and has_ended ~= 'lease' then ended = number end
  free()
  return said
end
if is_told then
  redis.call('PEXPIRE', record, DAY) -- Adds nothing; the rest runs at maxmemory.
  write(redis.call('PTTL', lock))
end
if is_its then return tell_vote(redis.call('PTTL', lock)) end
return value and tell('held') or answer('free')
