-- guard.lua: R11: whether the node votes for the instance. One that may have forgotten leases
--   votes when they have expired; one that serves other settings does not.
-- KEYS: those of prelude.lua, which runs before it
-- ARGV: those of prelude.lua
-- Returns: nothing
local function over(lease) -- The time until a lease has expired on any clock.
  return lease + math.ceil(lease / 100) + 2
end
local refused -- Why Redis does not take the write.
local function serve(at) -- Serves the instance's settings from `at` on, if Redis takes the write.
  local value = string.format('%s|%.0f|%.0f|%s', run, at, longest, nodes)
  refused = redis.pcall('SET', guard, value, 'PX', DAYS_30).err
  if refused then return false end
  from, its_longest, its_nodes = at, longest, nodes
  return true
end
local function wait() -- Serves them once all leases that it voted for have expired.
  return serve(now + over(math.max(longest, its_longest)))
end
if unseen and (own or not of) then
  own = wait()
elseif own and now >= from and from > 0 then
  serve(0) -- It has waited; no step of its clock makes it wait again.
end
local voting = own and now >= from
local silence = own and 'blank' or refused and 'refuses' or 'foreign'
