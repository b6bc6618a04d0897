-- try_acquire.lua: rule 2: a vote for an attempt, only where the lock is free and its number is new.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms)  4 owner  5 number  6 attempt  7 "1" if the claim
--   waits  8 "1" if others wait behind it; the last one is the instance's settings
-- Returns: answer: "yes" | "again": the token has the lock | "behind" | "held", as inspect.lua |
--   {now, "foreign"} | {now, "late"}
local not_after, token, ttl, its_owner, proposed, attempt, waits, behind = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, 'foreign' } end
local is_uncounted = voting and string.sub(by, 1, 1) == '?' -- Rule 11: nobody counts on it.
if holder == token and not is_uncounted then return answer('again') end
if value and holder ~= token then
  if waits == '1' and waiting == '' then
    waiting = '+'
    redis.call('PEXPIRE', record, DAY) -- Adds nothing; the rest runs at maxmemory.
    write(redis.call('PTTL', lock))
  end
  return tell('held')
end
proposed = tonumber(proposed)
if proposed <= highest then return answer('behind') end
redis.call('SET', lock, token, 'PX', ttl)
highest, number, its_ttl, renewals, start = proposed, proposed, ttl, 0, now
by, holder, owner = (voting and '' or '?') .. attempt, token, its_owner
waiting = behind == '1' and '+' or ''
write(tonumber(ttl))
used()
return answer('yes')
