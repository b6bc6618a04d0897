-- release.lua: gives up what a token has on this node, if it matches the arguments.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 guard; and the mark of an ended lease
-- ARGV: 1 not after (ms), or empty  2 asked at the earliest (ms) of what may have been renewed since, or empty  3 token  4 renewals that the keeper knows, or empty  5 attempt to clean up: a vote that others use stays, or empty  6 highest fencing token to give up, or empty  7 "1" to give up no smaller one; the last one is the instance's settings
-- Returns: {now, "lease", fencing token, owner, ttl (ms)} | {now, "smaller" | "greater"} where the token has another lease | {now, "nothing"} | {now, "taken", holder, fencing token} if another token has the lock | {now, "blank" | "foreign"} | {now, "late"}
local not_after, before, token, kept, its_attempt, most, exact = unpack(ARGV)
if not_after ~= '' and now > tonumber(not_after) then return { now, 'late' } end
local others = its_attempt ~= '' and ours and without(attempt, its_attempt)
if others and others ~= '' and others ~= attempt then -- It is a vote for others as well.
  write(string.match(known, '^%+?'), { last, number, its_ttl, renewals, others, token, owner, since }, redis.call('PTTL', record))
end
local older = before == '' or ours and set_at() <= tonumber(before)
local asked = value == token and older and (kept == '' or renewals <= tonumber(kept)) and (its_attempt == '' or ours and others == '')
if asked and exact == '1' and most ~= '' and ours and number < tonumber(most) then return { now, 'smaller' } end
local meant = asked and (most == '' or ours and number <= tonumber(most))
if meant then free() end
if its_attempt == '' and (meant or value ~= token and before == '') then
  mark_ended(token)
elseif its_attempt == '' and asked then
  mark_ended(token, tonumber(most)) -- It may be a vote for that lease, which is about to be leveled.
end
if meant then
  return { now, 'lease', ours and number or 0, ours and owner or '', ours and tonumber(its_ttl) or longest }
end
if value == token and ours and most ~= '' and number > tonumber(most) then return { now, 'greater' } end
if voting and value and value ~= token then return { now, 'taken', value, ours and number or 0 } end
return { now, voting and 'nothing' or silence }
