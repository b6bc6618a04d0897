-- record.lua: the lock and its record; runs after guard.lua, before the scripts about one lock.
-- KEYS: 1 lock: the token as a plain string  2 record: "<highest>/<ended> <number> <ttl (ms)>
--   <state> <by> <start (ms)> <token> <owner>", kept for a DAY after the lock. `ended` is the
--   number that a release ended last. `state` is 1 if a stream keeps the lease, 2 once its client
--   was heard of or its stream has let it go, and 0 before. `by` is the attempt that asked for the
--   vote while that is open, and "-" once it is told. "+" before the record: claims wait for a
--   hint. A lock without a record is a direct Redis client's, and "-" its holder: it is no lease,
--   and ends by a release.
-- ARGV: those of the script that follows
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local DAY = 86400000
local value, known = redis.pcall('GET', lock), redis.pcall('GET', record)
-- An error: another type, as of a direct Redis client's lock. The same call raises any other error.
if type(value) == 'table' then
  value = string.match(value.err, '^WRONGTYPE') and '' or redis.call('GET', lock)
end
if type(known) == 'table' then
  known = string.match(known.err, '^WRONGTYPE') and '' or redis.call('GET', record)
end
known = known or ''
local FORM = '^%+?%d+/(%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%S+) (.*)$'
local waiting, highest = string.match(known, '^(%+?)(%d+)')
waiting, highest = waiting or '', tonumber(highest or 0)
local ended, number, its_ttl, state, by, start, holder, owner = string.match(known, FORM)
local function clear() -- The fields of a free lock, or of a direct client's.
  number, its_ttl, state, by, start = 0, 0, 0, '-', 0
  holder, owner = '-', ''
end
if not value or value ~= holder then clear() end
ended = tonumber(ended or 0)
number, state, start = tonumber(number), tonumber(state), tonumber(start)
local held = start > 0 and math.max(0, now - start) or -1
local function write(left) -- The record, for a DAY after the time that is left of the lock.
  local form = '%s%.0f/%.0f %.0f %.0f %.0f %s %.0f %s %s'
  local text = string.format(
    form, waiting, highest, ended, number, its_ttl, state, by, start, holder, owner)
  redis.call('SET', record, text, 'PX', math.max(left, 0) + DAY)
end
local function free() -- Frees the lock, and tells the claims that wait.
  redis.call('DEL', lock)
  if waiting == '+' then redis.pcall('PUBLISH', 'lk//freed', lock) end -- Permission may be missing.
  value, waiting = false, ''
  clear()
  write(0)
end
local function term(ttl, max_hold, left) -- A TTL that `max_hold` limits.
  if max_hold == '' then return tonumber(ttl) end
  local rest = start + max_hold - now
  return math.min(ttl, math.max(rest, left, 1))
end
local function answer(word, ...) return { now, word, voting and 1 or 0, highest, ... } end
local function tell_vote(left) -- The lock, for its token.
  return answer('has', number, by, left, tonumber(its_ttl), state, owner, held)
end
local function tell(word) -- The lock, for others.
  local left = value and redis.call('PTTL', lock) or 0
  return answer(word, left, value or '', number, owner, held)
end
