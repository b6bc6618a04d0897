-- refresh.lua: makes the lease of a token last from now; never revives a lost one.
-- KEYS: 1 lock  2 record
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), empty: as last asked for  4 default ttl (ms)  5 retention beyond the ttl (ms)  6 fencing floor  7 latest believable time (us)
-- Returns: {now, "refreshed", fencing token, ttl (ms), owner} | {now, "lost"} | {now, "late"}
local not_after, token, ttl, default_ttl, retention, floor, believable = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if redis.pcall('GET', lock) ~= token then return { now, 'lost' } end
local last, last_ttl, last_token, owner = string.match(redis.call('GET', record) or '', '^(%d+) (%d+) (%S+) (.*)$')
local fence = tonumber(last)
if last_token ~= token then -- A client on Redis took the lock with this token: here its record begins.
  fence = math.max((fence or 0) + 1, math.min(now_us, tonumber(believable)), tonumber(floor))
  last_ttl, owner = default_ttl, ''
end
if ttl == '' then ttl = last_ttl end
redis.call('PEXPIRE', lock, ttl)
redis.call('SET', record, string.format('%.0f %s %s %s', fence, ttl, token, owner), 'PX', ttl + retention)
return { now, 'refreshed', fence, tonumber(ttl), owner }
