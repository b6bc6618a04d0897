-- tell.lua: the leases that share the lock, all together, and what an answer tells of one; runs
--   after share.lua.
-- KEYS: those of share.lua
-- ARGV: those of the script that follows
-- Returns: nothing
local function beside(own) -- The number of other leases, their units, and the least they allow.
  local holders, all_units, least = redis.call('ZCARD', share), 0, math.huge
  for slots, number in pairs(sums) do
    all_units = all_units + number
    local its_own = own and own.slots == slots and own.units or 0
    if number > its_own then least = math.min(least, slots) end
  end
  -- Where records were lost, the holders are unknown and share with none.
  if holders == 0 or holders > all_units then return 1, 1, 1 end
  if own then return holders - 1, all_units - own.units, least end
  return holders, all_units, least
end
local function unknown() -- What is told of a lease without a record.
  local left = redis.call('PTTL', lock)
  return { left = left, fence = 0, owner = '', since = 0, slots = 1, units = 1, slot = 0 }
end
local function exclusive() -- The lease of a lock that is not shared, whoever holds it.
  return lease_of(value) or unknown()
end
local function append(answer, items)
  for _, item in ipairs(items) do answer[#answer + 1] = item end
  return answer
end
-- Appends ms left, fencing token, owner, ms held or -1, slots, units, slot or 0.
local function tell(answer, one)
  local held = held_ms(now, one.since)
  local share_of_it = { one.slots, one.units, one.slot }
  return append(append(answer, { one.left, one.fence, one.owner, held }), share_of_it)
end
