-- try_acquire.lua: R2 and R8: a vote for an attempt, if the node votes, its number is new and
--   the lock is free, or has the number that the attempt replaces: then the start stays.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms)  4 owner  5 number  6 attempt  7 "1" if the claim
--   waits  8 "1" if others wait behind it  9 its state  10 number to replace, or empty  11 longest
--   time that a lease lasts (ms), or empty; the last one is the instance's settings
-- Returns: answer: "yes", ms left | "again": the token has the lock, or not the number to replace
--   | "behind" | "waits": it does not vote | "held", as inspect.lua | {now, "foreign"}
--   | {now, "late"}
local not_after, token, ttl, its_owner, proposed, attempt, waits, behind = unpack(ARGV)
local becomes, replaces, max_hold = ARGV[9], ARGV[10], ARGV[11]
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, 'foreign' } end
local is_replaced = holder == token and number == tonumber(replaces)
if replaces ~= '' and not is_replaced then return answer('again') end
if holder == token and not is_replaced then return answer('again') end
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
if not voting then return answer('waits') end
if not is_replaced then start, waiting = now, behind == '1' and '+' or '' end
its_ttl = term(ttl, max_hold, 0)
redis.call('SET', lock, token, 'PX', its_ttl)
highest, number, state = proposed, proposed, tonumber(becomes)
by, holder, owner = attempt, token, its_owner
write(its_ttl)
return answer('yes', its_ttl)
