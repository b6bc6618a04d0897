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
-- The places of a line that was evicted, or was not asked for two minutes, are void: claims that
-- stood there join anew. A script that takes the last claim out leaves no mark of a line.
local function void_lost_line()
  local is_lost = marked and not took_out and redis.call('EXISTS', line) == 0
  if is_lost then born = math.max(seat + 1, now) end
end
local function forget_if_empty() -- Forgets a line without claims; the caller saves its mark.
  if not marked or not is_empty() then return end
  void_lost_line()
  redis.call('DEL', crew, who)
  marked = false
end
local function drop(token) -- Takes a claim out of the line; the caller saves the mark.
  out(token)
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
    its_ttl, state, since = 0, NEW, 0
    save()
  else
    redis.call('DEL', lock)
    value = false
    forget_if_empty()
    save_mark()
  end
end
-- Tells the instance of a claim that it does not wait there any more, unless it is this one.
local function tell_its_instance(token, score, instance, word)
  local index, by = math.floor(score / SPAN), value == token and handed()
  for _, man in ipairs(crewmen()) do
    local is_its = man.index == index or man.id == by
    if is_its and man.id ~= instance then
      local hint = string.format('\1%.0f%s\1%s', score % SPAN, word, lock)
      redis.pcall('PUBLISH', 'lk//' .. man.id, hint) -- A hint, as above.
    end
  end
end
local function give_back(token, its_owner, place, keep) -- Its old place, to an absent claim.
  if redis.call('ZSCORE', line, token) then return end
  redis.call('HSET', who, token, string.format('%.0f %s', now, its_owner))
  park(token, place, now + keep)
  keep_on()
  marked = true
end
