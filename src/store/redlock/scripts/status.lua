-- status.lua: tells when a node votes, and for which instances; after prelude.lua alone, so that
--   it writes nothing.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "voting" | "waiting" | "unseen" | "foreign", ms until it votes, longest lease (ms)
--   and number of nodes that it serves}
local word = now >= from and 'voting' or 'waiting'
if not own then word = 'foreign' end
if unseen then word = 'unseen' end
return { now, word, math.max(0, from - now), its_longest, tonumber(its_nodes or 0) }
