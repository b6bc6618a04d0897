-- rights.lua: one call of each command that the scripts use; withheld.lua tries them. They change
--   nothing: Redis checks the rights before all that is wrong with a call.
-- KEYS: none: so every node of a Cluster runs it
-- ARGV: none
-- Returns: nothing
local none = 'lk//rights'
local calls = {
  { 'GET', none }, { 'SET', none, '', 'PX', 0 }, { 'DEL', none }, { 'EXISTS', none },
  { 'PTTL', none }, { 'PEXPIRE', none, 1 }, { 'PEXPIREAT', none, 1 },
  { 'ZADD', none, 'XX', 0, '' }, { 'ZREM', none, '' }, { 'ZSCORE', none, '' }, { 'ZCARD', none },
  { 'ZCOUNT', none, 0, 0 }, { 'ZRANGE', none, 0, 0 }, { 'ZRANGEBYSCORE', none, 0, 0 },
  { 'HSET', none, '', '', '' }, { 'HGET', none, '' }, { 'HDEL', none, '' }, { 'HGETALL', none },
  { 'HMGET', none, '' }, { 'PUBLISH', none, '' }, { 'SCAN', 0, 'COUNT', 1 },
}
