-- ended.lua: the end of a claim, for other instances; runs after line.lua.
-- KEYS: those of line.lua
-- ARGV: those of the script that follows
-- Returns: nothing
local function end_elsewhere(token, instance) -- Makes other instances ask for a claim that ends, and remembers its end for them.
  local score = marked and tonumber(redis.call('ZSCORE', line, token) or nil)
  if not score then return end
  local index, also = math.floor(score / SPAN), tonumber(redis.call('HGET', crew, '@' .. token) or nil)
  local place, by = string.format('%.0f', score % SPAN), value == token and handed()
  for _, man in ipairs(crewmen()) do
    if man.id ~= instance and (man.index == index or man.index == also or man.id == by) then
      redis.call('HSET', crew, '~' .. token, place, 'ended', string.format('%.0f', now + ENDED))
      redis.pcall('PUBLISH', 'lk//' .. man.id, '\1' .. place .. '\1' .. lock) -- A hint; the permission may be missing.
    end
  end
end
local function give_back(token, its_owner, place, keep) -- Gives an absent claim the place back that it had.
  redis.call('ZREM', line, '') -- Adds nothing; what follows then runs even at maxmemory.
  if redis.call('ZSCORE', line, token) then return end
  redis.call('HDEL', crew, '~' .. token)
  if not redis.call('HGET', crew, 'n') then redis.call('HSET', crew, 'n', place) end
  redis.call('HSET', who, token, string.format('%.0f %s', now, its_owner))
  park(token, place, now + keep)
  for _, name in ipairs({ line, crew, who }) do redis.call('PEXPIRE', name, 120000) end
  if not marked then marked, known = true, '+' .. (known ~= '' and known or '0 0 0 - ') end
end
