-- try_acquire.lua: grants the key if it is free, or again to the token that holds it.
-- KEYS: 1 lock  2 record
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms)  4 owner  5 retention of the record (ms)  6 fencing floor  7 latest believable time (us)
-- Returns: {now, "granted" | "again", fencing token} | {now, "held", ms left, fencing token, owner} | {now, "late"}
local not_after, token, ttl, owner, retention, floor, believable = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
local fence = math.max(math.min(now_us, tonumber(believable)), tonumber(floor))
if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  local known = string.format('%.0f %s %s %s', fence, ttl, token, owner)
  local before = redis.pcall('SET', record, known, 'PX', retention, 'GET')
  if before then -- The key was used before; a table if somebody keeps another type there.
    local last = type(before) == 'string' and tonumber(string.match(before, '^%d+')) or 0
    if last >= fence or type(before) ~= 'string' then
      fence = math.max(fence, last + 1)
      redis.call('SET', record, string.format('%.0f %s %s %s', fence, ttl, token, owner), 'PX', retention)
    end
  end
  return { now, 'granted', fence }
end
local value = redis.pcall('GET', lock) -- A table if a client on Redis keeps another type there.
local known = redis.pcall('GET', record)
local last, holder, holder_owner = string.match(type(known) == 'string' and known or '', '^(%d+) %d+ (%S+) (.*)$')
last = tonumber(last or 0)
local ours = value == holder
if value ~= token then
  return { now, 'held', redis.call('PTTL', lock), ours and last or 0, ours and holder_owner or '' }
end
fence = ours and last or math.max(fence, last + 1)
redis.call('PEXPIRE', lock, ttl)
redis.call('SET', record, string.format('%.0f %s %s %s', fence, ttl, token, owner), 'PX', retention)
return { now, 'again', fence }
