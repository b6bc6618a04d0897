-- tell.lua: the leases that share the lock, all together, and what an answer tells of one; runs
--   after share.lua.
-- KEYS: those of share.lua
-- ARGV: those of the script that follows
-- Returns: nothing
local function beside(own) -- The number of other leases, and the least that they allow.
  local holders, least = 0, math.huge
  for slots, number in pairs(sums) do
    holders = holders + number
    if number > 1 or not own or own.slots ~= slots then least = math.min(least, slots) end
  end
  -- Where records were lost, the holders are unknown and share with none.
  if holders == 0 or holders ~= redis.call('ZCARD', share) then return 1, 1 end
  return own and holders - 1 or holders, least
end
local function unknown() -- What is told of a lease without a record.
  local left = redis.call('PTTL', lock)
  return { left = left, fence = 0, owner = '', since = 0, slots = 1, slot = 0 }
end
local function exclusive() -- The lease of a lock that is not shared, whoever holds it.
  return lease_of(value) or unknown()
end
local function append(answer, items)
  for _, item in ipairs(items) do answer[#answer + 1] = item end
  return answer
end
-- Appends ms left, fencing token, owner, ms held or -1, slots, slot or 0.
local function tell(answer, one)
  local held = held_ms(now, one.since)
  return append(answer, { one.left, one.fence, one.owner, held, one.slots, one.slot })
end
