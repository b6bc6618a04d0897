-- settle.lua: R7: makes the vote of a number told, and brings the lease to a node that still
--   says what it said. A lease that a release ended on a node is not brought back to it, and a
--   keeper renews none that was let go there.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 token  3 number  4 what the node said: "<highest> <number>
--   <by>", or empty  5 ttl (ms)  6 owner  7 state  8 ms held  9 longest time that a lease lasts
--   (ms), or empty; the last one is the instance's settings
-- Returns: answer: "has", as refresh.lua | "joined" | "changed" | {now, "foreign"} | {now, "late"}
local not_after, token, fence, said, ttl, its_owner, its_state, age, max_hold = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, 'foreign' } end
fence = tonumber(fence)
local has_it = holder == token and number == fence
local is_taken = value and holder ~= token
local is_unchanged = said == string.format('%.0f %.0f %s', highest, number, by)
if is_taken or not (has_it or is_unchanged) then return answer('changed') end
if not value and ended == fence then return answer('changed') end
if has_it and state > tonumber(its_state) then return answer('changed') end
if not has_it then start, held, holder = now - age, tonumber(age), token end
owner, state = its_owner, tonumber(its_state)
highest, number, by = math.max(highest, fence), fence, '-'
local left = has_it and redis.call('PTTL', lock) or 0
local most = term(ttl, max_hold, left)
if most >= left then its_ttl, left = most, most end
if value then redis.call('PEXPIRE', lock, left) else redis.call('SET', lock, token, 'PX', left) end
write(left)
return has_it and tell_vote(left) or answer('joined')
