-- prelude.lua: runs before every script: takes the node's time, once, and decides whether it votes for this instance. A node that may have forgotten leases votes again when they have expired.
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
local function over(lease) -- The time until a lease has expired on any clock.
  return lease + math.ceil(lease / 100) + 2
end
local function unused() -- The time since an instance with the guard's settings used it.
  local left = redis.call('PTTL', guard)
  return left < 0 and 0 or days_30 - left
end
local function serve(at) -- Serves this instance's settings from `at` on. Returns true if Redis has written it.
  local value = string.format('%s|%.0f|%.0f|%s', run, at, longest, nodes)
  local set = redis.pcall('SET', guard, value, 'PX', days_30)
  if type(set) ~= 'table' or set.ok ~= 'OK' then return false end
  from, its_longest, its_nodes = at, longest, nodes
  return true
end
local function used() -- At most once in a tenth of the longest lease, so that a vote is never much younger than the last use.
  if unused() >= longest / 10 then redis.call('PEXPIRE', guard, days_30) end
end
if not of or of ~= run and trust ~= '1' then
  own = serve(now + over(math.max(longest, its_longest)))
elseif not own and unused() >= its_longest / 10 + over(its_longest) then
  own = serve(from) -- The last leases of the other instances have expired.
elseif own and now >= from and from > 0 then
  serve(0) -- It has waited; no step of its clock makes it wait again.
end
local voting = own and now >= from
local silence = own and 'blank' or 'foreign'
-- vote.lua: the lock and its record; runs after prelude.lua, before the scripts about one lock.
-- KEYS: 1 lock (the token as a plain string)  2 record ("<last> <number> <ttl ms> <renewals> <attempt> <token> <owner>", with a "+" before it if claims wait: the highest fencing token that the node knows, and that of its lease)
-- ARGV: those of the script that follows
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local TAKE_OVER = 2 ^ 20 -- The weight of a take-over among the renewals, as in src/lock/lease.rs.
local kind = redis.call('TYPE', lock).ok
local value = kind == 'string' and redis.call('GET', lock) -- Another type is the lock of a direct Redis client.
local known = redis.pcall('GET', record)
known = type(known) == 'string' and known or ''
local last = tonumber(string.match(known, '^%+?(%d+)') or 0)
local number, its_ttl, renewals, attempt, holder, owner = string.match(known, '^%+?%d+ (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
number, renewals = tonumber(number or 0), tonumber(renewals or 0)
local ours = value and value == holder
local function draw(proposal, floor) -- A proposal far ahead of this clock would use up the protection against loss.
  return math.max(last + 1, tonumber(floor), math.min(tonumber(proposal), now_us + 1000000))
end
local function write(mark, fields, keep)
  redis.call('SET', record, mark .. string.format('%.0f %.0f %.0f %.0f %s %s %s', unpack(fields)), 'PX', keep)
end
local function ended(whose) -- The mark of a lease that ended here: a refresh under way must not bring it back.
  return 'lk//!' .. whose .. ' ' .. lock -- No token contains a space.
end
local function mark_ended(whose) -- Longer than any such refresh takes.
  redis.pcall('SET', ended(whose), '1', 'PX', 5000)
end
local function free() -- Frees the key, and sends a hint if claims wait.
  redis.call('DEL', lock)
  if string.sub(known, 1, 1) ~= '+' then return end
  redis.call('SET', record, string.sub(known, 2), 'KEEPTTL')
  redis.pcall('PUBLISH', 'lk//freed', lock) -- A hint; the permission may be missing.
end
-- inspect.lua: the holder of the key on this node.
-- KEYS: 1 lock  2 record  3 guard
-- ARGV: the instance's settings
-- Returns: {now, "held", ms left, holder, fencing token, owner, renewals} | {now, "free"} | {now, "blank" | "foreign"}
if not voting then return { now, silence } end
if kind == 'none' then return { now, 'free' } end
return { now, 'held', redis.call('PTTL', lock), value or '', ours and number or 0, ours and owner or '', ours and renewals or 0 }
