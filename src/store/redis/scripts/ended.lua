-- ended.lua: the end of a claim, for other instances and for requests that are on their way; runs after line.lua.
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
local function releases() -- The tokens that were released without a lease, with the times, as the record has them at its end.
  return string.match(known, '\n[^ ]*( .*)$') or ''
end
local function give_up(token) -- Notes a release without a lease: older requests of the token may be on their way.
  if value and value ~= SHARED then return end
  local marks = {}
  for one, at in string.gmatch(releases(), ' (%S+):(%d+)') do
    if one ~= token and tonumber(at) > now - MARKED_FOR then marks[#marks + 1] = string.format(' %s:%s', one, at) end
  end
  marks[#marks + 1] = string.format(' %s:%.0f', token, now)
  local lease, left = string.match(known, '^[^\n]*\n?[^ ]*'), redis.call('PTTL', record)
  known = known == '' and '0 0 0 - ' or lease
  known = (string.find(known, '\n') and known or known .. '\n') .. table.concat(marks, '', math.max(1, #marks - 31))
  redis.call('PEXPIRE', record, left > 0 and left or MARKED_FOR) -- Adds nothing; what follows then runs even at maxmemory.
  redis.pcall('SET', record, known, 'PX', left > 0 and left or MARKED_FOR)
end
