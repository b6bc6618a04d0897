-- grant.lua: a claim, whether there is room for it, and its grant; runs after share.lua and ended.lua.
-- KEYS: those of share.lua
-- ARGV: 1 not after (ms)  2 asked at the earliest (ms)  3 asked at the latest (ms)  4 token  5 ttl (ms)  6 owner  7 retention of the record beyond the ttl (ms)  8 fencing floor  9 latest believable time (us)  10 longest time that a lease lasts (ms), or empty  11 name of the request  12 instance, or empty  13 its window (ms)  14 time for which a place is kept (ms)  15 place where the claim stood, empty if it joins  16 slots: 1 for an exclusive lease, more than 1000 for as many as there may be, empty for those that it has  17 "<fencing token>:<renewals>" of the wider lease that an earlier answer told, or empty
-- Returns: nothing
local not_after, asked, latest, token, ttl, its_owner, retention, floor, believable, max_hold, request, instance, window, keep, stood, slots, told = unpack(ARGV)
local all = (shared or slots ~= '' and slots ~= '1') and sharing() -- Not of an exclusive claim for an exclusive lock.
local own = all and all.lease(token)
if all and value == token and holder == token then
  own = { slots = 1, slot = 0, fence = last, owner = owner, renewals = tonumber(renewals), since = string.match(since, '%S+') or '-', ttl = tonumber(last_ttl), ends = now + redis.call('PTTL', lock) }
end
slots = tonumber(slots ~= '' and slots or stood == '' and own and own.slots or 1)
if own and slots > own.slots and set_since(asked, own.ends - now, own.ttl) then slots = own.slots end -- As in `renewed`: the client may count on fewer by now.
local function room() -- All who would then have the lock allow so many, the claim included.
  if not shared then return not value or value == token end
  local others, least = all.beside(own)
  return others < math.min(slots, least, 1000)
end
local perhaps, record_left = 0, nil
local function given_up(moment) -- Whether the key, or the claim, was given up after a moment: it may have been refused over another instance meanwhile.
  record_left = record_left or redis.call('PTTL', record)
  return given_up_since(moment, token, known, record_left)
end
local function begun(again, fence) -- Ends the claim's wait; the fencing token of its lease.
  end_elsewhere(token, instance)
  redis.call('HDEL', crew, 'to', 'by')
  drop(token, true)
  for _, man in ipairs(marked and crewmen() or {}) do -- A grant proves that the instance is alive, too.
    if man.id == instance then
      man.deadline = now + window
      redis.call('HSET', crew, instance, string.format('%d:%.0f', man.index, man.deadline))
    end
  end
  return again and fence or math.max(last + 1, math.min(now_us, tonumber(believable)), tonumber(floor))
end
local function lasting(earlier) -- The TTL of the lease, in place of an earlier one if there is one, and what it has left.
  local first = tonumber(at_first(ttl, max_hold))
  if not earlier then return first, first end
  local left = earlier.ends - now
  return renewed(capped(ttl, earlier.since, max_hold, left), asked, left, earlier.ttl)
end
local function started(earlier, its_renewals, renewals) -- The start of the lease.
  if not earlier then return perhaps == 1 and in_doubt(now, request) or string.format('%.0f', now) end
  earlier, perhaps = doubted(earlier, its_renewals, renewals, asked, request)
  return earlier
end
local function grant_share() -- A reader that becomes one of a number begins anew: its fencing token may be lower than an earlier one of its slot.
  redis.call('ZADD', line, 'XX', 0, '') -- Adds nothing; at maxmemory it is refused, unless the claim has a place or a lease.
  local again = own and not (own.slots > 1000 and slots <= 1000)
  local lease = again and own or { slot = 0, renewals = -TAKE_OVER }
  lease.since = started(own and own.since, own and own.renewals, lease.renewals + TAKE_OVER)
  local before = shared and own and { slots = own.slots, slot = own.slot }
  lease.ttl, lease.left = lasting(own)
  lease.fence = begun(again, again and own.fence)
  last = math.max(last, lease.fence)
  lease.slots, lease.renewals, lease.owner = slots, lease.renewals + TAKE_OVER, its_owner
  all.admit(token, lease, before)
  redis.call('SET', record, string.format('%s%.0f 0 0 - \n%s', marked and '+' or '', last, releases()), 'PX', redis.call('PTTL', lock) + retention)
  ring(stood ~= '' and instance) -- An instance that asked for its head goes on by itself.
  return { now, again and 'again' or 'granted', lease.fence, lease.renewals, lease.left, slots, lease.slot, not again and own and own.fence or 0, perhaps }
end
local function grant()
  if slots > 1 then return grant_share() end
  local again = value == token and holder == token
  local before = not again and own -- A promotion: it begins anew, but has had the key since then.
  local ttl, left = lasting(again and { since = since, ttl = last_ttl, ends = now + redis.call('PTTL', lock) } or own)
  local after = again and renewals + TAKE_OVER or 0
  since = again and started(since, renewals, after) or '\n' .. started(before and before.since, before and before.renewals, after)
  redis.call('SET', lock, token, 'PX', left)
  if shared then redis.call('DEL', share, facts) end
  local fence = begun(again, last)
  renewals = after
  redis.call('SET', record, string.format('%s%.0f %s %.0f %s %s%s', marked and '+' or '', fence, ttl, renewals, token, its_owner, since), 'PX', left + retention)
  return { now, again and 'again' or 'granted', fence, renewals, left, 1, 0, before and before.fence or 0, perhaps }
end
