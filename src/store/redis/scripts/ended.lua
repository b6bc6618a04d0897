-- ended.lua: tells other instances that wait with a claim of its end; runs after line.lua.
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
