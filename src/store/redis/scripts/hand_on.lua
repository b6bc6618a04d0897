-- hand_on.lua: the end of a claim, and of a lease; runs after line.lua.
-- KEYS: those of line.lua
-- ARGV: those of the script that follows
-- Returns: nothing
local function handed() -- The instance of a hand-off that is not confirmed.
  return value and holder == '!' .. value and owner
end
-- Takes a claim out of the line, and forgets a line without claims. Saves the record then, unless
-- the caller does.
local function drop(token, is_saved)
  if not marked then return end
  out(token)
  redis.call('HDEL', crew, '@' .. token)
  sweep()
  if redis.call('EXISTS', line) == 1 then return end
  local remembers = tonumber(redis.call('HGET', crew, 'ended') or 0) > now
  if remembers then redis.call('PEXPIRE', crew, ENDED) else redis.call('DEL', crew, who) end
  marked = false
  if not is_saved then save() end
end
local function hand_on(keep) -- Frees the lock, or hands it to the head, which must confirm it.
  redis.call('DEL', lock)
  value, its_ttl, renewals, since, holder, owner = false, 0, 0, 0, '-', ''
  local first = head()
  if first then
    local lapse = math.max(first.man.deadline - now, 250)
    redis.call('SET', lock, first.token, 'PX', lapse)
    park(first.token, first.place, now + lapse + keep)
    redis.pcall('PUBLISH', 'lk//' .. first.man.id, lock) -- A hint; the permission may be missing.
    value, holder, owner = first.token, '!' .. first.token, first.man.id
  end
  if known then save() elseif marked then save(0) end
end
-- Makes other instances ask for a claim that ends, and remembers its end for them.
local function end_elsewhere(token, instance)
  local score = marked and tonumber(redis.call('ZSCORE', line, token) or nil)
  if not score then return end
  local place, index = string.format('%.0f', score % SPAN), math.floor(score / SPAN)
  local also = tonumber(redis.call('HGET', crew, '@' .. token) or nil)
  local by = value == token and handed()
  for _, man in ipairs(crewmen()) do
    local waits_with_it = man.index == index or man.index == also or man.id == by
    if waits_with_it and man.id ~= instance then
      redis.call('HSET', crew, '~' .. token, place, 'ended', string.format('%.0f', now + ENDED))
      redis.pcall('PUBLISH', 'lk//' .. man.id, '\1' .. place .. '\1' .. lock) -- A hint, as above.
    end
  end
end
local function give_back(token, its_owner, place, keep) -- Its old place, to an absent claim.
  if redis.call('ZSCORE', line, token) then return end
  redis.call('HDEL', crew, '~' .. token)
  redis.call('HSET', who, token, string.format('%.0f %s', now, its_owner))
  park(token, place, now + keep)
  for _, name in ipairs({ line, crew, who }) do redis.call('PEXPIRE', name, 120000) end
  marked = true
end
