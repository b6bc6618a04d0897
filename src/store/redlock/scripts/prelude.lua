-- prelude.lua: runs before every script: takes the node's time, once, and reads for which instances the node votes, and from when on.
-- KEYS: the last one is the guard ("<run id>|<votes from (ms)>|<longest lease (ms)>|<number of nodes>"), kept for 30 days after each use
-- ARGV: the last one is the instance's settings ("<longest lease (ms)>|<number of nodes>|<1 if a restarted node is trusted>")
-- Returns: nothing
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local guard, days_30 = KEYS[#KEYS], 2592000000
local longest, nodes, trust = string.match(ARGV[#ARGV], '^(%d+)|(%d+)|(.*)$')
local of, from, its_longest, its_nodes = string.match(redis.call('GET', guard) or '', '^(%x+)|(%d+)|(%d+)|(%d+)$')
local own = its_longest == longest and its_nodes == nodes
longest, its_longest, from = tonumber(longest), tonumber(its_longest or 0), tonumber(from or 0)
local unseen = not of or of ~= run and trust ~= '1' -- It may have forgotten leases, and no instance has asked it since.
