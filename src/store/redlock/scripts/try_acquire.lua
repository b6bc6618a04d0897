-- try_acquire.lua: one node's vote for a claim: yes if the key is free, or held by its token already.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 "1" if a restarted node is trusted  3 token  4 ttl (ms)  5 owner  6 retention of the record (ms)  7 proposed fencing token (us)  8 fencing floor  9 attempt  10 "1" if others wait behind the claim  11 "1" if the claim waits
-- Returns: {now, "yes" | "again", set, fencing token, renewals} | {now, "taken", ms left, holder, fencing token, owner} | {now, "blank"} | {now, "late"}
local not_after, trust, token, ttl, its_owner, retention, proposal, floor, its_attempt, behind, waits = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not voting(trust) then return { now, 'blank' } end
if kind ~= 'none' and value ~= token then
  if waits == '1' and string.sub(known, 1, 1) ~= '+' then
    redis.pcall('SET', record, '+' .. (known ~= '' and known or '0 0 0 0 - - '), 'PX', math.max(redis.call('PTTL', record), tonumber(retention)))
  end
  return { now, 'taken', redis.call('PTTL', lock), value or '', ours and number or 0, ours and owner or '' }
end
local fence = ours and number or draw(proposal, floor)
renewals = ours and renewals + 2 ^ 20 or 0
redis.call('SET', lock, token, 'PX', ttl)
-- No clean-up of an attempt may take a vote that was there before it.
local whose = ours and '-' or its_attempt
write(behind == '1' and '+' or '', { math.max(last, fence), fence, ttl, renewals, whose, token, its_owner }, retention)
return { now, ours and 'again' or 'yes', set, fence, renewals }
