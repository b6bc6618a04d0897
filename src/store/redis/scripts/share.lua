-- share.lua: the leases that share the lock; runs after line.lua.
-- KEYS: 6 share: token -> last millisecond of its lease  7 facts: token -> "<slots> <slot, or 0> <fencing token> <ttl ms> <renewals> <start (ms), or -> <owner>", # -> "<for each slot 1 if it is taken, else 0> <slots>:<number of leases> ..."; both mean nothing unless the lock's value is SHARED
-- ARGV: those of the script that follows
-- Returns: nothing
local share, facts = KEYS[6], KEYS[7]
local shared = value == SHARED
local function sharing() -- Removes the leases that are over. A function: exclusive leases do not pay for it.
  local us, taken, sums = {}, '', {}
  local function count(lease, by) -- Counts a lease in or out.
    local number = (sums[lease.slots] or 0) + by
    sums[lease.slots] = number > 0 and number or nil
    if lease.slot == 0 then return end
    taken = taken .. string.rep('0', lease.slot - #taken)
    taken = string.sub(taken, 1, lease.slot - 1) .. (by > 0 and 1 or 0) .. string.sub(taken, lease.slot + 1)
    if by < 0 then taken = string.match(taken, '^.*1') or '' end
  end
  local function forget(token)
    local lease = us.lease(token)
    redis.call('ZREM', share, token) redis.call('HDEL', facts, token)
    if lease then count(lease, -1) end
  end
  local function note() -- The lock lasts as long as the longest of its leases; without any it is free.
    local last = redis.call('ZRANGE', share, -1, -1, 'WITHSCORES')[2]
    if not last then redis.call('DEL', lock, share, facts) value, shared = false, false return end
    local text = taken
    for slots, number in pairs(sums) do text = string.format('%s %.0f:%.0f', text, slots, number) end
    redis.call('HSET', facts, '#', text)
    for _, name in ipairs({ lock, share, facts, record }) do redis.call('PEXPIREAT', name, math.max(last, now + 1) + (name == record and DAY or 0)) end -- Redis ends a key once its end has passed, but at once if it is set to the present.
  end
  function us.lease(token) -- The lease of a token.
    local ends = shared and redis.call('ZSCORE', share, token)
    local slots, slot, fence, ttl, renewals, since, whose = string.match(ends and redis.call('HGET', facts, token) or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
    return slots and { ends = tonumber(ends), slots = tonumber(slots), slot = tonumber(slot), fence = tonumber(fence), ttl = tonumber(ttl), renewals = tonumber(renewals), since = since, owner = whose }
  end
  function us.beside(own) -- The number of other leases, and the least that they allow.
    local holders, least = 0, math.huge
    for slots, number in pairs(sums) do
      holders = holders + number
      if number > 1 or not own or own.slots ~= slots then least = math.min(least, slots) end
    end
    if holders == 0 or holders ~= redis.call('ZCARD', share) then return 1, 1 end -- Records were lost: the holders are unknown and share with none.
    return own and holders - 1 or holders, least
  end
  function us.edge(at) return us.lease(redis.call('ZRANGE', share, at, at)[1] or '') end -- The first lease to end, 0, or the last, -1.
  function us.unknown() return { ends = now + redis.call('PTTL', lock), fence = 0, owner = '', since = '-', slots = 1, slot = 0 } end
  function us.tell(answer, one) -- Appends ms left, fencing token, owner, ms held or -1, slots, slot or 0.
    for _, fact in ipairs({ one.ends - now, one.fence, one.owner, held_ms(one.since), one.slots, one.slot }) do answer[#answer + 1] = fact end
    return answer
  end
  function us.admit(token, lease, before) -- A lease, in place of an earlier one of its token.
    if not shared then -- What is there may be of a lock that was deleted by hand.
      redis.call('SET', lock, SHARED, 'PX', lease.left)
      redis.call('DEL', share, facts)
      value, shared = SHARED, true
    end
    if before then count(before, -1) end
    if lease.slots > 1000 then lease.slot = 0 elseif lease.slot == 0 then lease.slot = string.find(taken, '0', 1, true) or #taken + 1 end
    lease.ends = now + lease.left
    count(lease, 1)
    redis.call('ZADD', share, lease.ends, token)
    redis.call('HSET', facts, token, string.format('%.0f %.0f %.0f %.0f %.0f %s %s', lease.slots, lease.slot, lease.fence, lease.ttl, lease.renewals, lease.since, lease.owner))
    note()
  end
  function us.depart(token) forget(token) note() end
  local all, over = shared and redis.pcall('HMGET', facts, '#') or {}, shared and redis.pcall('ZRANGEBYSCORE', share, '-inf', '(' .. string.format('%.0f', now)) or {}
  if all.err then redis.call('DEL', facts) all = {} end -- Another type: the records are lost.
  if over.err then redis.call('DEL', share) over = {} end
  taken = string.match(all[1] or '', '^[01]*')
  for slots, number in string.gmatch(all[1] or '', ' (%d+):(%d+)') do sums[tonumber(slots)] = tonumber(number) end
  for _, token in ipairs(over) do forget(token) end
  if over[1] then note() end
  return us
end
local function ring(but) -- There may be room: the instance of the head asks, unless it is this one.
  local first = head()
  if first and first.man.id ~= but then redis.pcall('PUBLISH', 'lk//' .. first.man.id, lock) end -- A hint; the permission may be missing.
end
