-- hand_on.lua: the end of a claim, and of a lease; runs after line.lua.
-- KEYS: those of line.lua
-- ARGV: those of the script that follows
-- Returns: nothing
local function handed() -- The instance of a hand-off that is not confirmed.
  return value and holder == '!' .. value and owner
end
local function is_empty() -- No claim is there; removes claims whose kept places have expired.
  local first = redis.call('ZRANGE', line, 0, 0)[1]
  if not first or string.sub(first, 1, 1) ~= '!' then return not first end
  local over = redis.call('ZRANGEBYSCORE', line, '-inf', now - PAST, 'LIMIT', 0, 500)
  for _, mark in ipairs(over) do out(string.sub(mark, 2)) end
  return redis.call('EXISTS', line) == 0
end
local function keep_on() -- The line lasts for two minutes more.
  for _, name in ipairs({ line, crew, who }) do redis.call('PEXPIRE', name, '120000') end
end
local function forget_if_empty() -- Forgets a line without claims; the caller saves its mark.
  if not marked or not is_empty() then return end
  local remembers = (of_crew('ended') or 0) > now
  if remembers then redis.call('PEXPIRE', crew, ENDED) else redis.call('DEL', crew, who) end
  marked = false
end
local function drop(token) -- Takes a claim out of the line; the caller saves the mark.
  out(token)
  if of_crew('@' .. token) then redis.call('HDEL', crew, '@' .. token) end
  forget_if_empty()
end
local function hand_on(keep) -- Frees the lock, or hands it to the head, which must confirm it.
  local first = head()
  if first then
    local lapse = math.max(first.man.deadline - now, 250)
    redis.call('SET', lock, first.token, 'PX', lapse)
    park(first.token, first.place, now + lapse + keep)
    redis.pcall('PUBLISH', 'lk//' .. first.man.id, lock) -- A hint; the permission may be missing.
    value, holder, owner = first.token, '!' .. first.token, first.man.id
    its_ttl, renewals, since = 0, 0, 0
    save()
  else
    redis.call('DEL', lock)
    value = false
    forget_if_empty()
    save_mark()
  end
end
-- Makes other instances ask for a claim that ends, and remembers its end for them.
local function end_elsewhere(token, score, instance)
  local index, also = math.floor(score / SPAN), of_crew('@' .. token)
  local by = value == token and handed()
  for _, man in ipairs(crewmen()) do
    local waits_with_it = man.index == index or man.index == also or man.id == by
    if waits_with_it and man.id ~= instance then
      local place = string.format('%.0f', score % SPAN)
      redis.call('HSET', crew, '~' .. token, place, 'ended', string.format('%.0f', now + ENDED))
      noted.ended = now + ENDED
      redis.pcall('PUBLISH', 'lk//' .. man.id, '\1' .. place .. '\1' .. lock) -- A hint, as above.
    end
  end
end
local function give_back(token, its_owner, place, keep) -- Its old place, to an absent claim.
  if redis.call('ZSCORE', line, token) then return end
  redis.call('HDEL', crew, '~' .. token)
  redis.call('HSET', who, token, string.format('%.0f %s', now, its_owner))
  park(token, place, now + keep)
  keep_on()
  marked = true
end
