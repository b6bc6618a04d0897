-- refresh.lua: rule 6: renews the lease of a number, or a vote that is told if none is named. A
--   keeper is refused after a take-over, and its last word after any renewal.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 number, or empty
--   5 renewals that the keeper knows, or empty  6 the weight of a take-over for a keeper, 1 for its
--   last word  7 renewals to add  8 "1" if it sets the end, earlier too  9 longest time that a
--   lease lasts (ms), or empty  10 "=" and an owner to set, or empty; the last one is the
--   instance's settings
-- Returns: answer: "told" | "other": another number, or an open vote; both with number, by, ms
--   left, ttl (ms), renewals, owner, ms held or -1 | "free" | "taken" | "taken_over" |
--   {now, "foreign"} | {now, "late"}
local not_after, token, ttl, named, kept, span, adds, sets_end, max_hold, sets_owner = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, 'foreign' } end
if holder ~= token then return answer(value and 'taken' or 'free') end
local left = redis.call('PTTL', lock)
local is_meant = named == '' and by == '-' or number == tonumber(named)
if not is_meant then return tell_vote('other', left) end
if kept ~= '' then -- The node may have missed some renewals that the keeper knows.
  if math.floor(renewals / span) > math.floor(kept / span) then return answer('taken_over') end
  renewals = math.max(renewals, kept)
end
renewals, by = renewals + adds, '-'
owner = string.match(sets_owner, '^=(.*)') or owner
local most = term(ttl ~= '' and ttl or its_ttl, max_hold, left)
if sets_end == '1' or most >= left then its_ttl, left = most, most end
redis.call('PEXPIRE', lock, left)
write(left)
used()
return tell_vote('told', left)
