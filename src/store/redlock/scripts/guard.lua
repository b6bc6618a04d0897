-- guard.lua: runs after prelude.lua, before the scripts of an instance: decides whether the node votes for it. A node that may have forgotten leases votes again when they have expired.
-- KEYS: the last one is the guard
-- ARGV: the last one is the instance's settings
-- Returns: nothing
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
if unseen then
  own = serve(now + over(math.max(longest, its_longest)))
elseif not own and unused() >= its_longest / 10 + over(its_longest) then
  own = serve(from) -- The last leases of the other instances have expired.
elseif own and now >= from and from > 0 then
  serve(0) -- It has waited; no step of its clock makes it wait again.
end
local voting = own and now >= from
local silence = own and 'blank' or 'foreign'
