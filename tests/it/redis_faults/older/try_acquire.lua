-- prelude.lua: runs before every script: takes the store's time, once.
-- KEYS: 1 lock (the token as a plain string)  2 record ("<fencing token> <ttl ms> <renewals> <token> <owner>", after a release "<fencing token> 0 0 - "; with a "+" before it if there may be a line)
-- ARGV: those of the script that follows
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local TAKE_OVER = 2 ^ 20 -- The weight of a take-over among the renewals, as in src/lock/lease.rs.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
-- try_acquire.lua: grants the key if it is free, or again to the token that holds it; does nothing if there may be a line.
-- KEYS: 1 lock  2 record
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms)  4 owner  5 retention of the record (ms)  6 fencing floor  7 latest believable time (us)
-- Returns: {now, "granted" | "again", fencing token, renewals} | {now, "held", ms left, fencing token, owner} | {now, "line"} | {now, "late"}
local not_after, token, ttl, owner, retention, floor, believable = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
local fence = math.max(math.min(now_us, tonumber(believable)), tonumber(floor))
if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  local known = string.format('%.0f %s 0 %s %s', fence, ttl, token, owner)
  local before = redis.pcall('SET', record, known, 'PX', retention, 'GET')
  if before then -- The record of an earlier lease; a table (an error) if another type is there.
    before = type(before) == 'string' and before or ''
    if string.sub(before, 1, 1) == '+' then
      redis.call('DEL', lock)
      redis.call('SET', record, before, 'PX', retention)
      return { now, 'line' }
    end
    local last = tonumber(string.match(before, '^%d+') or fence)
    if last >= fence then
      fence = last + 1
      redis.call('SET', record, string.format('%.0f %s 0 %s %s', fence, ttl, token, owner), 'PX', retention)
    end
  end
  return { now, 'granted', fence, 0 }
end
local value = redis.pcall('GET', lock) -- A table (an error) if a direct Redis client keeps another type there.
local known = redis.pcall('GET', record)
known = type(known) == 'string' and known or ''
if string.sub(known, 1, 1) == '+' then return { now, 'line' } end
local last, renewals, holder, holder_owner = string.match(known, '^(%d+) %d+ (%d+) (%S+) (.*)$')
last = tonumber(last or 0)
local ours = value == holder
if value ~= token then
  return { now, 'held', redis.call('PTTL', lock), ours and last or 0, ours and holder_owner or '' }
end
fence = ours and last or math.max(fence, last + 1)
redis.call('PEXPIRE', lock, ttl)
renewals = (renewals or 0) + TAKE_OVER
redis.call('SET', record, string.format('%.0f %s %.0f %s %s', fence, ttl, renewals, token, owner), 'PX', retention)
return { now, 'again', fence, renewals }
