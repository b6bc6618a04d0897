-- try_acquire.lua: grants the key if it is free, or again to the token that holds it.
-- KEYS: 1 lock  2 record
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms)  4 owner  5 retention of the record (ms)  6 fencing floor  7 latest believable time (us)
-- Returns: {now, "granted" | "again", fencing token} | {now, "held", ms left, fencing token, owner} | {now, "late"}
local not_after, token, ttl, owner, retention, floor, believable = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
local last, _, last_token, last_owner = string.match(redis.call('GET', record) or '', '^(%d+) (%d+) (%S+) (.*)$')
local function keep(fence)
  redis.call('SET', record, string.format('%.0f %s %s %s', fence, ttl, token, owner), 'PX', retention)
end
local function next_fence()
  return math.max((tonumber(last) or 0) + 1, math.min(now_us, tonumber(believable)), tonumber(floor))
end
if next_fence() >= 2 ^ 53 then return redis.error_reply('ERR the fencing tokens are used up') end
if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  local fence = next_fence()
  keep(fence)
  return { now, 'granted', fence }
end
local value = redis.pcall('GET', lock) -- A table if a client on Redis keeps another type there.
if value == token then
  local fence = last_token == token and tonumber(last) or next_fence()
  redis.call('PEXPIRE', lock, ttl)
  keep(fence)
  return { now, 'again', fence }
end
local ours = value == last_token
return { now, 'held', redis.call('PTTL', lock), ours and tonumber(last) or 0, ours and last_owner or '' }
