-- rights.lua: one call of each command that the scripts use; withheld.lua tries them. They change
--   nothing: Redis checks the rights before all that is wrong with a call.
-- KEYS: none: so every node of a Cluster runs it
-- ARGV: none
-- Returns: nothing
local none = 'lk//rights'
local calls = {
  { 'GET', none }, { 'SET', none, '', 'PX', 0 }, { 'DEL', none }, { 'PTTL', none },
  { 'PEXPIRE', none, 1 }, { 'PUBLISH', none, '' }, { 'SCAN', 0, 'COUNT', 1 },
}
