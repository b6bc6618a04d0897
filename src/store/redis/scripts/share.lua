-- share.lua: the leases that share the lock; runs after line.lua.
-- KEYS: 6 share: token -> last millisecond of its lease  7 facts: token -> "<slots> <units>
--   <slot, or 0> <fencing token> <ttl (ms)> <state> <start (ms)> <owner>", # -> "<for each slot 1
--   if it is taken, else 0> <slots>:<units of their leases> ..."; both mean nothing unless the lock
--   is SHARED
-- ARGV: those of the script that follows
-- Returns: nothing
local share, facts = KEYS[6], KEYS[7]
local shared, taken, sums = value == SHARED, '', {} -- Slots that are taken; units by their slots.
local FACTS = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$'
local function lease_of(token) -- Exclusive or not; without fencing token if it has no record.
  if value == token and holder ~= '!' .. token then
    local left, is_noted = redis.call('PTTL', lock), holder == token
    local own = { slots = 1, units = 1, slot = 0, fence = 0, state = NEW, since = 0, owner = '' }
    own.ttl, own.left = left, left
    if is_noted then
      own.fence, own.ttl, own.state, own.since, own.owner = last, its_ttl, state, since, owner
    end
    return own
  end
  if not shared then return nil end
  local ends = redis.call('ZSCORE', share, token)
  local text = ends and redis.call('HGET', facts, token) or ''
  local slots, units, slot, fence, ttl, its_state, start, whose = string.match(text, FACTS)
  return slots and { slots = tonumber(slots), units = tonumber(units), slot = tonumber(slot),
    fence = tonumber(fence), ttl = tonumber(ttl), state = tonumber(its_state),
    since = tonumber(start), owner = whose, left = ends - now }
end
local function count(lease, by) -- Counts a lease in or out.
  local number = (sums[lease.slots] or 0) + by * lease.units
  sums[lease.slots] = number > 0 and number or nil
  if lease.slot == 0 then return end
  taken = taken .. string.rep('0', lease.slot - #taken)
  local before, after = string.sub(taken, 1, lease.slot - 1), string.sub(taken, lease.slot + 1)
  taken = before .. (by > 0 and 1 or 0) .. after
  if by < 0 then taken = string.match(taken, '^.*1') or '' end
end
local function note() -- The lock lasts as long as the longest of its leases, or is free.
  local longest = redis.call('ZRANGE', share, -1, -1, 'WITHSCORES')[2]
  if not longest then
    value, shared = false, false
    return redis.call('DEL', lock, share, facts)
  end
  local text = taken
  for slots, number in pairs(sums) do text = string.format('%s %.0f:%.0f', text, slots, number) end
  redis.call('HSET', facts, '#', text)
  local ends = math.max(longest, now + 1) -- Redis ends a key at once if its end is the present.
  for _, name in ipairs({ lock, share, facts }) do redis.call('PEXPIREAT', name, ends) end
end
local function forget(token)
  local lease = lease_of(token)
  if lease then count(lease, -1) end
  redis.call('ZREM', share, token)
  redis.call('HDEL', facts, token)
end
local function depart(token) forget(token) note() end
local function admit(token, lease, before) -- A lease, in place of an earlier one of its token.
  if not shared then -- What is there may be of a lock that was deleted by hand.
    redis.call('SET', lock, SHARED, 'PX', lease.left)
    redis.call('DEL', share, facts)
    value, shared = SHARED, true
  elseif before then
    count(before, -1)
  end
  local lowest_free = string.find(taken .. '0', '0', 1, true)
  local is_numbered = lease.slots <= 1000 and lease.units == 1
  if is_numbered and lease.slot == 0 then lease.slot = lowest_free end
  count(lease, 1)
  redis.call('ZADD', share, now + lease.left, token)
  local text = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %s', lease.slots,
    lease.units, lease.slot, lease.fence, lease.ttl, lease.state, lease.since, lease.owner)
  redis.call('HSET', facts, token, text)
  note()
end
if shared then -- Removes the leases that are over. Another type: the records are lost.
  local summary = redis.pcall('HMGET', facts, '#')
  local over = redis.pcall('ZRANGEBYSCORE', share, '-inf', '(' .. now)
  if is_other(summary, 'HMGET', facts, '#') then redis.call('DEL', facts) end
  if is_other(over, 'ZRANGEBYSCORE', share, 0, 0) then redis.call('DEL', share) end
  taken = string.match(summary[1] or '', '^[01]*')
  for slots, number in string.gmatch(summary[1] or '', ' (%d+):(%d+)') do
    sums[tonumber(slots)] = tonumber(number)
  end
  for _, token in ipairs(over) do forget(token) end
  if over[1] then note() end
end
