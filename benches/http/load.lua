-- load.lua: what wrk sends: acquires of keys that nobody has used, or acquires and releases in turn.
-- Before it stand: TAG (in every key of this run), PEER (a name of `peers`), CYCLE (releases as well),
-- LAG, SHA, TTL, FRESH (each request has a connection of its own), SHARE (all keys are TAG, with this
-- share of it), KEYS (of a request).

local END = " HTTP/1.1\r\nHost: localhost\r\n" .. (FRESH and "Connection: close\r\n" or "")

local function key(n) return SHARE ~= "" and TAG or TAG .. "-" .. id .. "-" .. n end
local function path(n)
  if KEYS == 1 then return "/locks/" .. key(n) .. "?" end
  local path = "/locks?"
  for i = 1, KEYS do path = path .. "key=" .. key(n) .. "-" .. i .. "&" end
  return path
end
local function token(n) return string.format("%08x-0000-4000-8000-%012x", id, n) end

local peers = {
  lockkeeper = {
    take = function(n)
      local header = CYCLE and "Lock-Token: " .. token(n) .. "\r\n" or ""
      return "POST " .. path(n) .. "ttl=" .. TTL .. SHARE .. END .. "Content-Length: 0\r\n" .. header .. "\r\n"
    end,
    give = function(n)
      return "DELETE " .. path(n) .. END .. "Lock-Token: " .. token(n) .. "\r\n\r\n"
    end,
  },
  webdis = {
    take = function(n) return "GET /SET/" .. key(n) .. "/" .. token(n) .. "/NX/PX/60000" .. END .. "\r\n" end,
    give = function(n) return "GET /DEL/" .. key(n) .. END .. "\r\n" end,
  },
  script = {
    take = function(n)
      local keys = key(n) .. "/record:" .. key(n)
      local far = "9007199254740991"
      local args = far .. "/" .. token(n) .. "/60000/bench/1/" .. far
      return "GET /EVALSHA/" .. SHA .. "/2/" .. keys .. "/" .. args .. END .. "\r\n"
    end,
  },
}

local LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(text)
  local out = {}
  for i = 1, #text, 3 do
    local a, b, c = text:byte(i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    for shift = 18, 0, -6 do
      local letter = math.floor(n / 2 ^ shift) % 64 + 1
      out[#out + 1] = LETTERS:sub(letter, letter)
    end
    if not b then out[#out - 1] = "=" end
    if not c then out[#out] = "=" end
  end
  return table.concat(out)
end
local function post(path, body)
  return "POST " .. path .. END .. "Content-Length: " .. #body .. "\r\n\r\n" .. body
end
peers.etcd = {
  take = function(n) return post("/v3/lock/lock", '{"name":"' .. base64(key(n)) .. '","lease":1}') end,
  give = function(n) return post("/v3/lock/unlock", '{"key":"' .. base64(key(n) .. "/1") .. '"}') end,
}
local peer = peers[PEER]

local threads = 0
function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end

-- The first request of the first thread is only looked at by wrk and never sent: key 0 is taken by
-- it and never given.
local taken, due = -1, nil
function request()
  if due then
    local n = due
    due = nil
    return peer.give(n)
  end
  taken = taken + 1
  if CYCLE and taken > LAG then due = taken - LAG end
  return peer.take(taken)
end

function done(summary)
  local e = summary.errors
  local errors = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format("RESULT %d %d %d\n", summary.requests, summary.duration, errors))
end
