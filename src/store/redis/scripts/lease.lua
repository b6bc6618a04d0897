-- lease.lua: the functions of a lease and of the record; runs after prelude.lua.
-- KEYS: those of prelude.lua
-- ARGV: those of the script that follows
-- Returns: nothing
-- The record, whose lease has so much time left, if any; it is `known`. Here and below all is an
-- argument: each local that a function takes from outside costs Redis as much as the function.
local function write(known, left, now, lined, last, seat, its_ttl, renewals, since, till, holder,
  owner)
  local ends = now + math.max(left, 0) + 86400000
  local is_too_short = till < ends
  if is_too_short then till = ends + 3600000 end
  local text =
    struct.pack(FORM, lined, last, seat, its_ttl, renewals, since, till, holder, owner)
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
-- Whether a take-over lies between the renewals and those that a keeper knows, or any renewal if it
-- is the keeper's last word. A client knows none.
local function is_taken_over(kept, last_word, renewals)
  local span = last_word == '1' and 1 or 2 ^ 20 -- The weight of a take-over: grant.lua.
  return kept ~= '' and math.floor(renewals / span) ~= math.floor(kept / span)
end
-- The TTL of a lease: it lasts no longer than `max_hold`, but no shorter than it would anyway. A
-- start that is not known is now.
local function term(now, ttl, max_hold, start, left)
  local rest = (start > 0 and start or now) + max_hold - now
  return math.min(ttl, math.max(rest, left, 1))
end
