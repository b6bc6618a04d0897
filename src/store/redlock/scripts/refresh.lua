-- refresh.lua: renews the lease of a token for a TTL from now, on this node; never revives a lost lease. A lease whose fencing token the node does not know is renewed, but proves nothing. A keeper is refused after a take-over, and its last word after any renewal.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 asked at the earliest (ms)  3 token  4 ttl (ms), or empty for the last one  5 default ttl (ms)  6 retention beyond the ttl (ms)  7 proposed fencing token (us)  8 fencing floor  9 fencing token of the lease, or empty  10 renewals that the keeper knows, empty for a client  11 "1" for the keeper's last word  12 longest time that a lease lasts (ms), or empty  13 name under which it gives up what it renews, if that is no lease, or empty; the last one is the instance's settings
-- Returns: {now, "again", fencing token, renewals, ttl (ms), owner, ms held or -1, the attempt that drew the number or empty} | {now, "taken_over"} | {now, "lost"} | {now, "missing", highest fencing token known here} where the key is free | {now, "blank" | "foreign"} | {now, "late"}
local not_after, asked, token, ttl, default_ttl, retention, proposal, floor, named, kept, last_word, max_hold, its_name = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, silence } end
if value ~= token then return { now, kind == 'none' and 'missing' or 'lost', last } end
-- A node that missed the lease's greatest number has a smaller one; a later lease has a greater one.
if named ~= '' and (not ours or number > tonumber(named)) then return { now, 'lost' } end
if not ours then -- A direct Redis client took the lock with this token: its record begins here.
  number, its_ttl, renewals, owner, since = voting and draw(proposal, floor) or 0, default_ttl, 0, '', ''
end
if kept == '' then
  renewals = renewals + 1
else
  kept = tonumber(kept)
  local span = last_word == '1' and 1 or TAKE_OVER
  if math.floor(renewals / span) > math.floor(kept / span) then return { now, voting and 'taken_over' or silence } end
  renewals = math.max(renewals, kept) -- This node may have missed some.
end
ttl = capped(math.min(tonumber(ttl == '' and its_ttl or ttl), longest), max_hold)
local kept_ttl, left = ttl, ttl
if last_word ~= '1' then kept_ttl, left = in_order(ttl, asked) end
redis.call('PEXPIRE', lock, left)
if last_word == '1' then mark_ended(token) end
-- A refreshed lease counts, so the clean-up of the attempt that began it must not take it. What is no lease does not count.
local whose = its_name ~= '' and ours and used_by(attempt, its_name) or '-'
if ours or voting then write(string.match(known, '^%+?'), { math.max(last, number), number, kept_ttl, renewals, whose, token, owner, counted(since) }, left + retention) end
used()
if not voting or number == 0 then return { now, silence } end
return { now, 'again', number, renewals, ttl, owner, held, drawer }
