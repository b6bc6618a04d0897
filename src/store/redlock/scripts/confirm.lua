-- confirm.lua: raises the node's fencing token to that of a lease, which is settled then, and tells whether the lease's token held the key here. After a refresh by a majority it also adds the lease if it is missing.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: 1 not after (ms)  2 token  3 fencing token of the lease  4 retention of the record beyond the ttl (ms)  5 ttl (ms)  6 renewals of a refreshed lease, or empty  7 its owner  8 ms held, or empty  9 ms held on the node with the earliest start, or empty  10 the highest fencing tokens known where the key was free at the refresh, a space around each  11 longest time that a lease lasts (ms), or empty  12 name of the confirmation; the last one is the instance's settings
-- Returns: {now, "yes"} | {now, "no"} | {now, "blank" | "foreign"} | {now, "late"}
local not_after, token, fence, retention, ttl, refreshed, its_owner, age, oldest, free_at, max_hold, name = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if not own then return { now, silence } end
fence, retention, ttl = tonumber(fence), tonumber(retention), tonumber(ttl)
-- A late vote may have a greater number than the lease: another token may have held the key in between.
local holds = value == token and ours and number <= fence
local late = holds and oldest ~= '' and start and start > now - oldest
if late then since = since_ms(oldest) end -- It joined the lease late, which must not last longer for that.
local function confirmed(since) -- The end of the record: a number that was drawn here has its drawer still, in case that this one is taken back.
  return settled(since) .. (number == fence and drawer ~= '' and string.format(' %s %s', drawer, name) or '')
end
local mark, keep = string.match(known, '^%+?'), math.max(redis.call('PTTL', record), ttl + retention)
local untouched = kind == 'none' and string.find(free_at, string.format(' %.0f ', last), 1, true) -- No other lease has come and gone here since the refresh.
local brings = refreshed ~= '' and (value == token or untouched) and ended_up_to(token) < fence
if brings and not (holder == token and (number > fence and drawer == '' or renewals > tonumber(refreshed) and (value or number == fence))) then -- Not over a later take-over; the record of an earlier lease tells of none, nor does a greater number that nobody has confirmed.
  if oldest ~= '' and (late or not start) then start = now - oldest end
  local px = math.max(capped(ttl, max_hold), redis.call('PTTL', lock)) -- It ends no earlier here for that, nor later than it may last: the TTL is of before.
  if value then redis.call('PEXPIRE', lock, px) end -- A write that adds nothing comes first, so that the rest runs even at maxmemory.
  redis.call('SET', lock, token, 'PX', px)
  write(mark, { math.max(last, fence), fence, ttl, tonumber(refreshed), '-', token, its_owner, ours and since ~= '' and confirmed(since) or age ~= '' and since_ms(age) or '' }, keep)
  used()
elseif last < fence or holds and (number < fence or settled(since) ~= since) or late then
  -- Raised even if the token is gone, for the next lease; only holders confirm.
  redis.call('PEXPIRE', record, keep)
  write(mark, { math.max(last, fence), holds and fence or number, its_ttl or 0, renewals, attempt or '-', holder or '-', owner or '', holds and confirmed(since) or since or '' }, keep)
end
if not voting then return { now, silence } end
return { now, holds and 'yes' or 'no' }
