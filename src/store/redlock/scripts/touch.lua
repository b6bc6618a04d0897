-- touch.lua: uses a node's guard, and tells which settings it serves and when the node votes.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "voting" | "blank" | "foreign" | "refuses", run id, longest lease (ms) and number
--   of nodes that it serves, ms until it votes, why it takes no guard, or empty}
if own then redis.call('PEXPIRE', guard, DAYS_30) end
local word, left = voting and 'voting' or silence, math.max(0, from - now)
return { now, word, run, its_longest, tonumber(its_nodes or 0), left, refused or '' }
