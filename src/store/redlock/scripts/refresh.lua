-- refresh.lua: R6: renews the lease of a number, or a vote that is told if none is named, if its
--   state is as required.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 number, or empty
--   5 "kept" or "plain": the lease that it renews, or empty for none  6 its state from now on
--   7 "1" if it sets the end, earlier too  8 longest time that a lease lasts (ms), or empty  9 "="
--   and an owner to set, or empty; the last one is the instance's settings
-- Returns: answer: "has", number, by, ms left, ttl (ms), state, owner, ms held or -1 | "free" |
--   "taken" | {now, "foreign"} | {now, "late"}
local not_after, token, ttl, named, renews, becomes, sets_end, max_hold, sets_owner = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, 'foreign' } end
if holder ~= token then return answer(value and 'taken' or 'free') end
local left = redis.call('PTTL', lock)
local is_meant = named == '' and by == '-' or number == tonumber(named)
if not is_meant or renews ~= (state == 1 and 'kept' or 'plain') then return tell_vote(left) end
state, by = tonumber(becomes), '-'
owner = string.match(sets_owner, '^=(.*)') or owner
local most = term(ttl ~= '' and ttl or its_ttl, max_hold, left)
if sets_end == '1' or most >= left then its_ttl, left = most, most end
redis.call('PEXPIRE', lock, left)
write(left)
return tell_vote(left)
