-- try_acquire.lua: one node's vote for a claim: yes if the key is free, or already held by its token. A node that does not vote yet still stores the lease, without a fencing token, to know it when it votes.
-- KEYS: 1 lock  2 record  3 guard; and the mark of an ended lease
-- ARGV: 1 not after (ms)  2 asked at the earliest (ms)  3 token  4 ttl (ms)  5 owner  6 retention of the record (ms)  7 proposed fencing token (us)  8 fencing floor  9 attempt  10 "1" if others wait behind the claim  11 "1" if the claim waits  12 longest time that a lease lasts (ms), or empty; the last one is the instance's settings
-- Returns: {now, "yes" | "again", fencing token, renewals, ttl (ms), owner, ms held or -1, the attempt that drew the number or empty, highest fencing token known before this one was drawn or -1} | {now, "taken", ms left, holder, fencing token, owner, ms held or -1} | {now, "ended"} if a lease of the token ended here after the attempt had begun | {now, "blank" | "foreign"} | {now, "late"}
local not_after, asked, token, ttl, its_owner, retention, proposal, floor, its_attempt, behind, waits, max_hold = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, silence } end
if kind ~= 'none' and value ~= token then
  if waits == '1' and string.sub(known, 1, 1) ~= '+' then
    redis.pcall('SET', record, '+' .. (known ~= '' and known or '0 0 0 0 - - '), 'PX', math.max(redis.call('PTTL', record), tonumber(retention)))
  end
  if not voting then return { now, silence } end
  return { now, 'taken', redis.call('PTTL', lock), value or '', ours and number or 0, ours and owner or '', held }
end
if kind == 'none' and ended_since(token, tonumber(asked)) then return { now, voting and 'ended' or silence } end -- Its release may be answered already.
if ours then ttl = capped(ttl, max_hold) elseif max_hold ~= '' then ttl = math.min(ttl, max_hold) end
local kept_ttl, left = ttl, ttl
if ours then kept_ttl, left = in_order(ttl, asked) end
local unknown = not ours or number == 0
-- A number that is drawn while the node does not vote may be below those that it forgot. It is told instead.
local fence = not unknown and number or voting and draw(proposal, floor) or 0
if unknown then since, drawer = (start and settled(since) or since_ms(0)) .. ' ' .. its_attempt, its_attempt else since = counted(since) end
renewals = ours and renewals + TAKE_OVER or 0
redis.call('SET', lock, token, 'PX', left)
-- A vote stays until all attempts that use it have given it up; one from before may be a lease.
local whose = ours and used_by(attempt, its_attempt) or its_attempt
write(behind == '1' and '+' or '', { math.max(last, fence), fence, kept_ttl, renewals, whose, token, its_owner, since }, retention)
used()
if not voting then return { now, silence } end
return { now, ours and 'again' or 'yes', fence, renewals, tonumber(ttl), its_owner, held, drawer, unknown and last or -1 }
