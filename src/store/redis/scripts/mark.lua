-- mark.lua: writes a key after the grants that wait for replicas.
-- KEYS: 1 mark
-- ARGV: 1 ttl (ms)
-- Returns: nothing
local mark = KEYS[1]
local ttl = ARGV[1]
redis.call('DEL', mark) -- Adds nothing; the rest runs at maxmemory.
redis.call('SET', mark, '', 'PX', ttl)
