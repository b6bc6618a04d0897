-- prelude.lua: runs before every script: takes the store's time, once.
-- KEYS: 1 lock (the token as a plain string)  2 record ("<fencing token> <ttl ms> <renewals> <token> <owner>", after a release "<fencing token> 0 0 - "; with a "+" before it if there may be a line)
-- ARGV: those of the script that follows
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local TAKE_OVER = 2 ^ 20 -- The weight of a take-over among the renewals, as in src/lock/lease.rs.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
-- refresh.lua: renews the lease of a token for a TTL from now; never revives a lost lease, and a hand-off is not a lease. A keeper is refused after a take-over, and its last word after any renewal.
-- KEYS: 1 lock  2 record
-- ARGV: 1 not after (ms)  2 token  3 ttl (ms), or empty for the last one  4 default ttl (ms)  5 retention beyond the ttl (ms)  6 fencing floor  7 latest believable time (us)  8 fencing token of the lease, or empty  9 renewals that the keeper knows, empty for a client  10 "1" for the keeper's last word
-- Returns: {now, "refreshed", fencing token, ttl (ms), owner, renewals} | {now, "taken_over"} | {now, "lost"} | {now, "late"}
local not_after, token, ttl, default_ttl, retention, floor, believable, named, kept, last_word = unpack(ARGV)
if now > tonumber(not_after) then return { now, 'late' } end
if redis.pcall('GET', lock) ~= token then return { now, 'lost' } end
local known = redis.pcall('GET', record)
local mark, last, last_ttl, renewals, holder, owner = string.match(type(known) == 'string' and known or '', '^(%+?)(%d+) (%d+) (%d+) (%S+) (.*)$')
if holder == '!' .. token then return { now, 'lost' } end -- An unconfirmed hand-off.
local fence = tonumber(last or 0)
if named ~= '' and (holder ~= token or fence ~= tonumber(named)) then return { now, 'lost' } end
if holder ~= token then -- A direct Redis client took the lock with this token: its record begins here.
  fence = math.max(fence + 1, math.min(now_us, tonumber(believable)), tonumber(floor))
  last_ttl, owner = default_ttl, ''
end
renewals = tonumber(renewals or 0)
if kept == '' then
  renewals = renewals + 1
else
  local span = last_word == '1' and 1 or TAKE_OVER
  if math.floor(renewals / span) ~= math.floor(kept / span) then return { now, 'taken_over' } end
end
if ttl == '' then ttl = last_ttl end
redis.call('PEXPIRE', lock, ttl)
redis.call('SET', record, string.format('%s%.0f %s %.0f %s %s', mark or '', fence, ttl, renewals, token, owner), 'PX', ttl + retention)
return { now, 'refreshed', fence, tonumber(ttl), owner, renewals }
