-- guard.lua: rule 11: whether the node votes for the instance. One that may have forgotten leases
--   votes when they have expired, one that serves other settings when their leases have.
-- KEYS: those of prelude.lua, which runs before it
-- ARGV: those of prelude.lua
-- Returns: nothing
local function over(lease) -- The time until a lease has expired on any clock.
  return lease + math.ceil(lease / 100) + 2
end
local function unused() -- The time since an instance with the guard's settings used it.
  local left = redis.call('PTTL', guard)
  return left < 0 and 0 or DAYS_30 - left
end
local refused -- Why Redis does not take the write.
local function serve(at) -- Serves the instance's settings from `at` on, if Redis takes the write.
  local value = string.format('%s|%.0f|%.0f|%s', run, at, longest, nodes)
  refused = redis.pcall('SET', guard, value, 'PX', DAYS_30).err
  if refused then return false end
  from, its_longest, its_nodes = at, longest, nodes
  return true
end
local function used() -- At most ten times in a longest lease: no vote is much younger than a use.
  if unused() >= longest / 10 then redis.call('PEXPIRE', guard, DAYS_30) end
end
if unseen then
  own = serve(now + over(math.max(longest, its_longest)))
elseif not own and unused() >= its_longest / 10 + over(its_longest) then
  own = serve(from) -- The last leases of the other instances have expired.
elseif own and now >= from and from > 0 then
  serve(0) -- It has waited; no step of its clock makes it wait again.
end
local voting = own and now >= from
local silence = own and 'blank' or refused and 'refuses' or 'foreign'
