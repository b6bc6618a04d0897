-- grant.lua: a claim, whether there is room for it, and its grant; runs after share.lua and ended.lua.
-- KEYS: those of share.lua
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms)  4 owner  5 fencing floor  6 latest believable time (us)  7 longest time that a lease lasts (ms), or empty  8 instance, or empty  9 its window (ms)  10 time for which a place is kept (ms)  11 place where the claim stood, empty if it joins  12 slots: 1 for an exclusive lease, more than 1000 for as many as there may be, empty for those that it has  13 fencing token of the lease that the claim names, or empty
-- Returns: nothing
local not_after, token, ttl, its_owner, floor, believable, max_hold, instance, window, keep, stood, slots, named = unpack(ARGV)
local all = (shared or slots ~= '' and slots ~= '1') and sharing() -- Not of an exclusive claim for an exclusive lock.
local own = all and all.lease(token) -- The lease that the token has.
if value == token and holder == token then
  own = { slots = 1, slot = 0, fence = last, owner = owner, renewals = tonumber(renewals), since = string.match(since, '%d+') or '-', ttl = tonumber(last_ttl), ends = now + redis.call('PTTL', lock) }
end
slots = tonumber(slots ~= '' and slots or own and own.slots or 1)
local score = standing(token)
local place = score and score % SPAN
local function room() -- All who would then have the lock allow so many, the claim included.
  if not shared then return not value or value == token end
  local others, least = all.beside(own)
  return others < math.min(slots, least, 1000)
end
local function begun() -- Ends the claim's wait.
  end_elsewhere(token, instance)
  redis.call('HDEL', crew, 'to', 'by')
  drop(token, true)
  for _, man in ipairs(marked and crewmen() or {}) do -- A grant proves that the instance is alive, too.
    if man.id == instance then
      man.deadline = now + window
      redis.call('HSET', crew, instance, string.format('%d:%.0f', man.index, man.deadline))
    end
  end
end
local function lasting() -- The TTL of the lease, no shorter than what the token has, and what it then has left.
  local first = at_first(ttl, max_hold)
  if not own then return first, first end
  local left = own.ends - now
  return extended(capped(ttl, own.since, max_hold, left), left, own.ttl)
end
local function next_fence() return math.max(last + 1, math.min(now_us, tonumber(believable)), tonumber(floor)) end
local function grant_share() -- A reader that becomes one of a number begins anew: its fencing token may be lower than an earlier one of its slot.
  redis.call('ZADD', line, 'XX', 0, '') -- Adds nothing; at maxmemory it is refused, unless the claim has a place or a lease.
  local again = own and not (own.slots > 1000 and slots <= 1000)
  local lease = again and own or { slot = 0, renewals = -TAKE_OVER, fence = next_fence(), since = own and own.since or string.format('%.0f', now) }
  local before = shared and own and { slots = own.slots, slot = own.slot }
  lease.ttl, lease.left = lasting()
  begun()
  last = math.max(last, lease.fence)
  lease.slots, lease.renewals, lease.owner = slots, lease.renewals + TAKE_OVER, its_owner
  all.admit(token, lease, before)
  redis.call('SET', record, string.format('%s%.0f 0 0 - ', marked and '+' or '', last), 'PX', redis.call('PTTL', lock) + DAY)
  ring(stood ~= '' and instance) -- An instance that asked for its head goes on by itself.
  return { now, again and 'again' or 'granted', lease.fence, lease.renewals, lease.left, slots, lease.slot, not again and own and own.fence or 0, score and place or 0 }
end
local function grant()
  if slots > 1 then return grant_share() end
  local again = own and own.slots == 1
  local fence, after = again and own.fence or next_fence(), again and own.renewals + TAKE_OVER or 0
  local its_ttl, left = lasting()
  redis.call('SET', lock, token, 'PX', left)
  if shared then redis.call('DEL', share, facts) end
  begun()
  local start = own and own.since or string.format('%.0f', now) -- One that becomes exclusive begins anew, but has had the key since then.
  redis.call('SET', record, string.format('%s%.0f %.0f %.0f %s %s\n%s', marked and '+' or '', fence, its_ttl, after, token, its_owner, start), 'PX', left + DAY)
  return { now, again and 'again' or 'granted', fence, after, left, 1, 0, not again and own and own.fence or 0, score and place or 0 }
end
