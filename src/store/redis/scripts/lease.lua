-- lease.lua: the functions of a lease and of the record; runs after prelude.lua.
-- KEYS: those of prelude.lua
-- ARGV: those of the script that follows
-- Returns: nothing
-- The record, whose lease has so much time left, if any; it is `known`. Here and below all is an
-- argument: each local that a function takes from outside costs Redis as much as the function.
local function write(known, left, now, lined, last, seat, born, its_ttl, state, since, till,
  holder, owner)
  local ends = now + math.max(left, 0) + 86400000
  local is_too_short = till < ends
  if is_too_short then till = ends + 3600000 end
  local text =
    struct.pack(FORM, lined, last, seat, born, its_ttl, state, since, till, holder, owner)
  if is_too_short then
    redis.call('SET', record, text, 'PX', till - now)
  elseif text ~= known then
    redis.call('SET', record, text, 'KEEPTTL')
  end
  return text, till
end
local function next_fence(last, now_us, believable, floor) -- The number of a new lease.
  return math.max(last + 1, math.min(now_us, believable), floor)
end
local function held_ms(now, start) -- The time since the start of a lease, -1 if that is not known.
  return start > 0 and math.max(0, now - start) or -1
end
-- The TTL of a lease: it lasts no longer than `max_hold`, but no shorter than it would anyway. A
-- start that is not known is now.
local function term(now, ttl, max_hold, start, left)
  local rest = (start > 0 and start or now) + max_hold - now
  return math.min(ttl, math.max(rest, left, 1))
end
-- The TTL and the time left of a lease that is renewed, for `most` at the most: only a keeper's
-- last word makes it end earlier, and without a TTL that leaves its end.
local function renewed(asks, ttl, most, its_ttl, left)
  local leaves, sets = asks == 'last' and ttl == '', asks == 'last' and ttl ~= ''
  if sets or not leaves and most >= left then return most, most end
  return its_ttl, left
end
