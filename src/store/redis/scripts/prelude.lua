-- prelude.lua: what stands before every script: the store's time, taken once, and the record.
-- KEYS: 1 lock (the token as a plain string)  2 record ("<fencing token> <ttl ms> <token> <owner>")
-- ARGV: those of the script behind it
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
