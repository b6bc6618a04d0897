-- prelude.lua: what stands before every script: the node's time, taken once, and its right to vote.
-- KEYS: the last one is the guard ("<state>|<set and nonce>|<run id>|<number>"; states: b blank, p prepared, v voting; numbers: milliseconds of the first sight of a blank node, fence base of a voting one)
-- ARGV: those of the script behind it
-- Returns: nothing
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local guard = KEYS[#KEYS]
local guarded = redis.call('GET', guard) or ''
local state, id, of, base = string.match(guarded, '^([bpv])|([^|]*)|(%x+)|(%d+)$')
local set = string.match(id or '', '^[^:]*')
local function voting(trust) -- A restarted node may have forgotten, unless it syncs every write.
  return state == 'v' and (of == run or trust == '1')
end
