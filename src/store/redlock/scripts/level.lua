-- level.lua: gives the vote of an attempt the number of the lease that the attempt got, if this node drew a greater one, or none because it does not vote: what names the lease would miss it here. Not if a majority may have confirmed the number since: the record has no drawer then.
-- KEYS: 1 lock  2 record  3 guard; and the mark of an ended lease
-- ARGV: 1 token  2 attempt  3 fencing token of the lease  4 "1" if a majority has it, otherwise a vote with a greater number is given up; the last one is the instance's settings
-- Returns: {now, "leveled"} | {now, "given_up"} if the lease has ended meanwhile | {now, "nothing"} | {now, "foreign"}
local token, its_attempt, fence, lasts = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if not own then return { now, silence } end
if value ~= token or drawer ~= its_attempt or number ~= 0 and number <= fence then return { now, 'nothing' } end
local up_to = ended_up_to(token)
if number ~= 0 and lasts ~= '1' or fence <= up_to and up_to < ANY then -- Another mark is of an earlier lease: it would have ended this one.
  free()
  return { now, 'given_up' }
end
redis.call('PEXPIRE', lock, redis.call('PTTL', lock)) -- A write that adds nothing comes first, so that the rest runs even at maxmemory.
write(string.match(known, '^%+?'), { math.max(last, fence), fence, its_ttl, renewals, attempt, token, owner, settled(since) }, redis.call('PTTL', record))
return { now, 'leveled' }
