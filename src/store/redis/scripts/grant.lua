-- grant.lua: a claim, whether it may have the lock, and its grant; runs after the other parts.
-- KEYS: those of share.lua
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), no more than 8  4 owner  5 fencing floor
--   6 latest believable time (us)  7 "1" if a stream is to keep the lease  8 longest time that a
--   lease lasts (ms)  9 slots: 1 for an exclusive lease, over 1000 for as many as there may be,
--   empty for those of the token's lease, or 1  10 units, or empty as the slots  11 fencing token
--   of the lease that the claim replaces, or empty  12 instance where it waits or waited, or empty
--   13 "1" if it waits on  14 time for which a place is kept (ms)  15 place where the claim stood,
--   or empty
-- Returns: nothing
local not_after, token, ttl, its_owner, floor, believable, kept, max_hold, slots, units, named,
  instance, joins, keep, stood = unpack(ARGV)
keep, stood = tonumber(keep), tonumber(stood)
local own = lease_of(token) -- The lease that the token has.
local like = named == '' and own -- A repeat asks for the share of the lease, or for none.
slots = tonumber(slots ~= '' and slots or like and own.slots or 1)
units = tonumber(units ~= '' and units or like and own.units or 1)
local score = standing(token)
local place = score and score % SPAN
local function room() -- All who would then have the lock allow their units, the claim included.
  if not shared then return not value or value == token end
  local _, others, least = beside(own)
  return others + units <= math.min(slots, least, 1000)
end
local function is_turn() -- There is room, and no present claim is ahead.
  if not room() then return false end
  if value == token then return true end -- It was handed to this claim.
  local first = head()
  return not first or first.token == token or place and place < first.place
end
local function decide()
  if named ~= '' then
    local is_named = own and own.fence == tonumber(named)
    local is_used_up = own and own.since > 0 and own.since + max_hold <= now
    if not is_named or is_used_up then return 'lost' end
    return room() and 'granted' or 'mine'
  end
  if own then
    local is_same = own.slots == slots and own.units == units
    local repeats = kept == '' and own.state ~= KEPT and is_same
    return repeats and 'again' or 'mine'
  end
  if stood and is_superseded(score, stood, instance) then return 'superseded' end
  if is_turn() then return 'granted' end
  return joins == '1' and 'waiting' or 'held'
end
local function repeated() -- The lease that the token has, no shorter than it is.
  local most = term(now, ttl, max_hold, own.since, own.left)
  local is_noted, is_longer = own.fence > 0, own.left > most
  own.fence = is_noted and own.fence or next_fence(last, now_us, believable, floor)
  own.ttl, own.left = is_longer and own.ttl or most, math.max(own.left, most)
  own.owner, own.state = its_owner, HEARD
  return own
end
local function begun() -- A new lease, whose holder may have had the key before.
  local start = own and own.since > 0 and own.since or now
  local most = term(now, ttl, max_hold, start, 0)
  return {
    slots = slots, units = units, slot = 0, owner = its_owner, since = start, ttl = most,
    left = most, fence = next_fence(last, now_us, believable, floor),
    state = kept == '1' and KEPT or NEW,
  }
end
local function grant(word)
  local before = own and own.fence or 0
  local ends = own and own.state ~= KEPT and now + own.left or 0 -- One that is kept: its stream's.
  local new = word == 'again' and repeated() or begun()
  if new.slots == 1 then
    redis.call('SET', lock, token, 'PX', new.left)
  else
    redis.call('ZADD', line, 'XX', 0, '') -- Adds nothing; at maxmemory it is refused, as SET is.
  end
  if score then
    tell_its_instance(token, score, instance, '')
    drop(token)
  else
    forget_if_empty()
  end
  last = math.max(last, new.fence)
  if new.slots == 1 then
    if shared then redis.call('DEL', share, facts) end
    its_ttl, state, since = new.ttl, new.state, new.since
    holder, owner = token, its_owner
  else
    admit(token, new, own)
    its_ttl, state, since, holder, owner = 0, NEW, 0, '-', ''
    ring(stood and instance) -- An instance that asked for its head goes on by itself.
  end
  save(new.slots == 1 and new.left or redis.call('PTTL', lock))
  if word == 'again' then before, ends = 0, 0 end
  return { now, word, new.fence, new.left, new.slots, new.units, new.slot, before, ends,
    place or 0 }
end
