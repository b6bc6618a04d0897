-- refresh.lua: makes the lease of a token last from now on this node; never revives a lost one. For a keeper only if nobody took over; for its last word only if nobody renewed.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 "1" if a restarted node is trusted  3 token  4 ttl (ms), empty: as last asked for  5 default ttl (ms)  6 retention beyond the ttl (ms)  7 proposed fencing token (us)  8 fencing floor  9 fencing token of the lease that is meant, or empty  10 renewals that a keeper knows, empty for a client  11 "1" for its last word
-- Returns: {now, "again", set, fencing token, renewals, ttl (ms), owner} | {now, "taken_over"} | {now, "lost"} | {now, "blank"} | {now, "late"}
local not_after, trust, token, ttl, default_ttl, retention, proposal, floor, named, kept, last_word = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not voting(trust) then return { now, 'blank' } end
if value ~= token then return { now, 'lost' } end
-- A node that missed the greatest number of the lease has a smaller one; a later lease has a greater one.
if named ~= '' and (not ours or number > tonumber(named)) then return { now, 'lost' } end
if not ours then -- A client on Redis took the lock with this token: here its record begins.
  number, its_ttl, renewals, owner = draw(proposal, floor), default_ttl, 0, ''
end
if kept == '' then
  renewals = renewals + 1
else
  kept = tonumber(kept)
  local span = last_word == '1' and 1 or 2 ^ 20
  if math.floor(renewals / span) > math.floor(kept / span) then return { now, 'taken_over' } end
  renewals = math.max(renewals, kept) -- This node may have missed some.
end
if ttl == '' then ttl = its_ttl end
redis.call('PEXPIRE', lock, ttl)
-- What was refreshed counts, so no clean-up of the attempt that began it may take it.
write(string.match(known, '^%+?'), { math.max(last, number), number, ttl, renewals, '-', token, owner }, ttl + retention)
return { now, 'again', set, number, renewals, tonumber(ttl), owner }
