-- The part of Redis that the store's scripts use: several nodes in memory, each with its own clock and run id.
-- The simulation calls the functions of `nodes`; a lock lives until its end on the node's clock, as on Redis.
local node, now, published
local all, commands = {}, {}

local function live(name)
  local entry = node.data[name]
  if entry and entry.ends and now > entry.ends then
    node.data[name] = nil
    return nil
  end
  return entry
end

local function text(value)
  return type(value) == 'number' and string.format('%.17g', value) or value
end

function commands.TIME()
  local us = node.us
  return { string.format('%.0f', math.floor(us / 1000000)), string.format('%.0f', us % 1000000) }
end

function commands.INFO(section)
  assert(section == 'server')
  return '# Server\r\nredis_version:7.0.15\r\nrun_id:' .. node.run .. '\r\ntcp_port:6379\r\n'
end

function commands.GET(name)
  local entry = live(name)
  return entry and entry.value or false
end

function commands.TYPE(name)
  return { ok = live(name) and 'string' or 'none' }
end

function commands.EXISTS(name)
  return live(name) and 1 or 0
end

function commands.SET(name, value, ...)
  local before, options, ends, at = live(name), { ... }, nil, 1
  while options[at] do
    if options[at] == 'NX' then
      if before then return false end
    elseif options[at] == 'KEEPTTL' then
      ends = before and before.ends
    else
      assert(options[at] == 'PX')
      at = at + 1
      local ms = tonumber(options[at])
      if not ms or ms <= 0 or ms % 1 ~= 0 then return { err = 'ERR invalid expire time' } end
      ends = now + ms
    end
    at = at + 1
  end
  node.data[name] = { value = text(value), ends = ends }
  return { ok = 'OK' }
end

function commands.PTTL(name)
  local entry = live(name)
  if not entry then return -2 end
  return entry.ends and entry.ends - now or -1
end

function commands.PEXPIRE(name, ms)
  local entry = live(name)
  if not entry then return 0 end
  if tonumber(ms) <= 0 then
    node.data[name] = nil
  else
    entry.ends = now + tonumber(ms)
  end
  return 1
end

function commands.DEL(name)
  local entry = live(name)
  node.data[name] = nil
  return entry and 1 or 0
end

function commands.PUBLISH(channel, message)
  assert(channel == 'lk//freed')
  published[#published + 1] = message
  return 0
end

redis = {}

function redis.pcall(name, ...)
  return commands[name](...)
end

function redis.call(name, ...)
  local reply = commands[name](...)
  if type(reply) == 'table' and reply.err then error(reply.err) end
  return reply
end

local nodes = {}

local function enter(number, us)
  node = all[number]
  node.us, now = us, math.floor(us / 1000)
end

-- Makes new nodes without leases, which wait at first, or have served these settings for long.
function nodes.begin(count, guard, settings)
  all = {}
  for number = 1, count do
    local run = 'f' .. number
    local data = settings and { [guard] = { value = run .. '|0|' .. settings } } or {}
    all[number] = { data = data, run = run }
  end
end

function nodes.run(number, us, script, keys, ...)
  enter(number, us)
  local given = { ... }
  KEYS, ARGV, published = {}, {}, {}
  for at, one in ipairs(given) do
    if at <= keys then KEYS[at] = one else ARGV[at - keys] = one end
  end
  local reply = script()
  return #published, unpack(reply)
end

function nodes.published()
  return unpack(published)
end

-- What a client does that locks without the service; true if it has the lock.
function nodes.lock(number, us, name, token, ttl)
  enter(number, us)
  return commands.SET(name, token, 'NX', 'PX', ttl) ~= false
end

function nodes.unlock(number, us, name, token)
  enter(number, us)
  if commands.GET(name) == token then commands.DEL(name) end
end

local function copy(data)
  local copied = {}
  for name, entry in pairs(data) do
    copied[name] = { value = entry.value, ends = entry.ends }
  end
  return copied
end

-- Takes a snapshot, as BGSAVE does.
function nodes.save(number)
  all[number].saved = copy(all[number].data)
end

-- Loses all data; with a run id it restarts, with or without its snapshot.
function nodes.forget(number, run, from_snapshot)
  local one = all[number]
  one.data = from_snapshot and one.saved and copy(one.saved) or {}
  one.run = run or one.run
end

-- The guard, the run id, and the number of locks.
function nodes.look(number, us, guard, locks)
  enter(number, us)
  local held = 0
  for name in pairs(node.data) do
    if string.sub(name, 1, #locks) == locks and live(name) then held = held + 1 end
  end
  return commands.GET(guard) or '', node.run, held
end

-- As Redis does.
KEYS, ARGV = {}, {}
setmetatable(_G, { __newindex = function(_, name) error('a global variable: ' .. name) end })

return nodes
