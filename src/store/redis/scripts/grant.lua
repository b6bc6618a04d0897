-- grant.lua: a claim, whether it may have the lock, and its grant; runs after the other parts.
-- KEYS: those of share.lua
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), no more than 7  4 owner  5 fencing floor
--   6 latest believable time (us)  7 longest time that a lease lasts (ms)  8 slots: 1 for an
--   exclusive lease, over 1000 for as many as there may be, empty for those of the token's lease
--   9 fencing token of the lease that the claim names, or empty  10 instance, empty if the claim
--   does not wait  11 time for which a place is kept (ms)  12 place where the claim stood, or empty
-- Returns: nothing
local not_after, token, ttl, its_owner, floor, believable, max_hold, slots, named, instance,
  keep, stood = unpack(ARGV)
keep = tonumber(keep)
local TAKE_OVER = 2 ^ 20 -- Its weight among the renewals, as in src/lock/lease.rs.
local own = lease_of(token) -- The lease that the token has.
slots = tonumber(slots ~= '' and slots or own and own.slots or 1)
local score = standing(token)
local place = score and score % SPAN
local function room() -- All who would then have the lock allow so many, the claim included.
  if not shared then return not value or value == token end
  local others, least = beside(own)
  return others < math.min(slots, least, 1000)
end
local function is_turn() -- There is room, and no present claim is ahead.
  if not room() then return false end
  if value == token then return true end -- It was handed to this claim.
  local first = head()
  return not first or first.token == token or place and place < first.place
end
local function decide()
  local is_named = named == '' or own and own.fence == tonumber(named)
  if not is_named then return 'lost' end
  local keeps_share = own and (own.slots == slots or named ~= '' and room())
  if own then return keeps_share and 'granted' or 'mine' end
  local has_ended = not place and stood ~= '' and of_crew('~' .. token) == tonumber(stood)
  if has_ended then return 'gone' end
  if is_turn() then return 'granted' end
  return instance ~= '' and 'waiting' or 'held'
end
-- A reader that becomes one of a number begins anew: its fencing token may be lower than an earlier
-- one of its slot. One that becomes exclusive does so as well. Both have had the key since then.
local function begins_anew()
  if not own then return true end
  local is_alone, was_alone = slots == 1, own.slots == 1
  return is_alone and not was_alone or own.slots > 1000 and slots <= 1000 and not is_alone
end
local function lease() -- The claim's lease, no shorter than what the token has.
  local anew, before = begins_anew(), own or { left = 0, since = now, fence = 0 }
  local is_noted = not anew and own.fence > 0
  local most = term(now, ttl, max_hold, before.since, before.left)
  local is_longer = before.left > most
  return {
    slots = slots, slot = anew and 0 or own.slot, owner = its_owner, since = before.since,
    fence = is_noted and own.fence or next_fence(last, now_us, believable, floor),
    renewals = anew and 0 or own.renewals + TAKE_OVER,
    ttl = is_longer and own.ttl or most, left = is_longer and own.left or most,
    word = anew and 'granted' or 'again', replaces = anew and before.fence or 0,
  }
end
local function grant()
  local new = lease()
  if new.slots == 1 then
    redis.call('SET', lock, token, 'PX', new.left)
  else
    redis.call('ZADD', line, 'XX', 0, '') -- Adds nothing; at maxmemory it is refused, as SET is.
  end
  if score then
    end_elsewhere(token, score, instance)
    drop(token)
  else
    forget_if_empty()
  end
  last = math.max(last, new.fence)
  if new.slots == 1 then
    if shared then redis.call('DEL', share, facts) end
    its_ttl, renewals, since = new.ttl, new.renewals, new.since
    holder, owner = token, its_owner
  else
    admit(token, new, own)
    its_ttl, renewals, since, holder, owner = 0, 0, 0, '-', ''
    ring(stood ~= '' and instance) -- An instance that asked for its head goes on by itself.
  end
  save(new.slots == 1 and new.left or redis.call('PTTL', lock))
  return { now, new.word, new.fence, new.renewals, new.left, new.slots, new.slot, new.replaces,
    place or 0 }
end
