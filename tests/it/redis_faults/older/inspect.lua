-- prelude.lua: runs before every script: takes the store's time, once.
-- KEYS: 1 lock (the token as a plain string)  2 record ("<fencing token> <ttl ms> <renewals> <token> <owner>", after a release "<fencing token> 0 0 - "; with a "+" before it if there may be a line)
-- ARGV: those of the script that follows
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local TAKE_OVER = 2 ^ 20 -- The weight of a take-over among the renewals, as in src/lock/lease.rs.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
-- line.lua: the functions of the line; runs after prelude.lua.
-- KEYS: 3 line: token -> SPAN * index of its instance + place, index 0 while it is absent; "!token" -> end of its kept place (ms) - PAST  4 crew: instance -> "index:deadline (ms)", n -> last place, to and by -> token and instance that the lock was handed to, "@token" -> index of another instance that waits with it as well, "~token" -> place of a claim that has ended while another instance waits with it, ended -> when the "~" fields may be removed (ms)
-- ARGV: those of the script that follows
-- Returns: nothing
local line, crew = KEYS[3], KEYS[4]
local SPAN, PAST, DAY, ENDED = 2 ^ 45, 2 ^ 50, 86400000, 10000
local value = redis.pcall('GET', lock) -- A table (an error) if a direct Redis client keeps another type there.
local known = redis.pcall('GET', record)
known = type(known) == 'string' and known or ''
local marked = string.sub(known, 1, 1) == '+' -- There may be a line.
local last, _, renewals, holder, owner = string.match(known, '^%+?(%d+) (%d+) (%d+) (%S+) (.*)$')
last = tonumber(last or 0)
local function crewmen()
  local all, found = redis.call('HGETALL', crew), {}
  for i = 1, #all, 2 do
    local index, deadline = string.match(all[i + 1], '^(%d+):(%d+)$')
    if index then found[#found + 1] = { id = all[i], index = tonumber(index), deadline = tonumber(deadline) } end
  end
  return found
end
local function head() -- The oldest claim of a living instance.
  local first
  for _, man in ipairs(marked and crewmen() or {}) do
    local from = man.index * SPAN
    local oldest = man.deadline > now and redis.call('ZRANGEBYSCORE', line, from, from + SPAN - 1, 'WITHSCORES', 'LIMIT', 0, 1) or {}
    local place = oldest[1] and tonumber(oldest[2]) - from
    if place and (not first or place < first.place) then first = { token = oldest[1], place = place, man = man } end
  end
  return first
end
local function waiters(below) -- The number of claims of living instances ahead of a place.
  local count = 0
  for _, man in ipairs(marked and crewmen() or {}) do
    if man.deadline > now then count = count + redis.call('ZCOUNT', line, man.index * SPAN, man.index * SPAN + (below or SPAN) - 1) end
  end
  return count
end
local function park(token, place, till) -- Keeps the place of an absent claim.
  redis.call('ZADD', line, place, token, till - PAST, '!' .. token) -- No token contains "!".
end
local function sweep() -- Removes claims whose kept places have expired.
  for _, over in ipairs(redis.call('ZRANGEBYSCORE', line, '-inf', now - PAST, 'LIMIT', 0, 64)) do
    redis.call('ZREM', line, over, string.sub(over, 2))
  end
end
local function standing(token) -- The score of a claim, unless its kept place has expired.
  local score = tonumber(redis.call('ZSCORE', line, token) or nil)
  local till = score and score < SPAN and tonumber(redis.call('ZSCORE', line, '!' .. token) or nil)
  if till and till + PAST <= now then return nil end
  return score
end
local function handed() -- The instance of an unconfirmed hand-off.
  local to, by = unpack(redis.call('HMGET', crew, 'to', 'by'))
  return value and to == value and holder ~= value and by or nil
end
local function drop(token)
  redis.call('ZREM', line, token, '!' .. token)
  redis.call('HDEL', crew, '@' .. token)
  if marked then sweep() end
  if marked and redis.call('EXISTS', line) == 0 then
    if tonumber(redis.call('HGET', crew, 'ended') or 0) > now then redis.call('PEXPIRE', crew, ENDED) else redis.call('DEL', crew) end
    marked, known = false, string.sub(known, 2)
    redis.call('SET', record, known, 'KEEPTTL')
  end
end
local function hand_on(keep) -- Frees the lock, or hands it to the head, which must confirm it.
  redis.call('DEL', lock)
  redis.call('HDEL', crew, 'to', 'by')
  local first = head()
  value, holder, owner = first and first.token or false, '-', ''
  if not first and known ~= '' then redis.call('SET', record, string.format('%s%.0f 0 0 - ', marked and '+' or '', last), 'KEEPTTL') end -- Removes the ended token from the record.
  if not first then return end
  local lapse = math.max(first.man.deadline - now, 250)
  redis.call('SET', lock, first.token, 'PX', lapse)
  redis.call('HSET', crew, 'to', first.token, 'by', first.man.id)
  redis.call('SET', record, string.format('+%.0f 0 0 !%s ', last, first.token), 'PX', DAY)
  park(first.token, first.place, now + lapse + keep)
  redis.pcall('PUBLISH', 'lk//' .. first.man.id, lock) -- A hint; the permission may be missing.
  return first
end
-- inspect.lua: the holder of the key, the number of its waiters, and whether a token holds it.
-- KEYS: 1 lock  2 record  3 line  4 crew
-- ARGV: 1 token, or empty
-- Returns: {now, "held", ms left, fencing token, owner, waiters, 1 if the token holds it} | {now, "free", waiters}
local asked = ARGV[1]
local count = marked and waiters() or 0
local left = redis.call('PTTL', lock)
if left == -2 then return { now, 'free', count } end
local ours = value == holder
local mine = value == asked and not (marked and handed())
return { now, 'held', left, ours and last or 0, ours and owner or '', count, mine and 1 or 0 }
