-- prelude.lua: runs before every script: reads the node's clock once, and the node's guard.
-- KEYS: the last one is the guard: "<run id>|<votes from (ms)>|<longest lease (ms)>|<number of
--   nodes>", kept for 30 days after each use
-- ARGV: the last one is the instance's settings: "<longest lease (ms)>|<number of nodes>|<1 if a
--   restarted node is trusted>"
-- Returns: nothing
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local guard, DAYS_30 = KEYS[#KEYS], 2592000000
local longest, nodes, trust = string.match(ARGV[#ARGV], '^(%d+)|(%d+)|(.*)$')
local of, from, its_longest, its_nodes =
  string.match(redis.call('GET', guard) or '', '^(%x+)|(%d+)|(%d+)|(%d+)$')
local own = its_longest == longest and its_nodes == nodes -- It serves the instance's settings.
longest, its_longest, from = tonumber(longest), tonumber(its_longest or 0), tonumber(from or 0)
-- It may have forgotten leases, and no instance has asked it since.
local unseen = not of or of ~= run and trust ~= '1'
