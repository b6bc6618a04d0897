-- confirm.lua: raises the node's fencing token to that of a lease, and says whether the lease's token still holds the key here.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 "1" if a restarted node is trusted  3 token  4 fencing token of the lease  5 retention of the record (ms)
-- Returns: {now, "yes", set} | {now, "no"} | {now, "late"}
local not_after, trust, token, fence, retention = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
fence = tonumber(fence)
-- A vote that came late may have drawn more than the lease: it may have been somebody else's in between.
local holds = voting(trust) and value == token and ours and number <= fence
if last < fence or holds and number < fence then
  -- Raised also where the token is gone, for whoever comes next; only holders count.
  number = holds and math.max(number, fence) or number
  local keep = math.max(redis.call('PTTL', record), tonumber(retention))
  write(string.match(known, '^%+?'), { math.max(last, fence), number, its_ttl or 0, renewals, attempt or '-', holder or '-', owner or '' }, keep)
end
return holds and { now, 'yes', set } or { now, 'no' }
