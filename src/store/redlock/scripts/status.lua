-- status.lua: tells when a node votes, and for which instances. It runs after prelude.lua alone, and so writes nothing.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "voting" | "waiting" | "unseen" | "foreign", ms until it votes, longest lease (ms) and number of nodes that it serves}
local word = unseen and 'unseen' or not own and 'foreign' or now >= from and 'voting' or 'waiting'
return { now, word, math.max(0, from - now), its_longest, tonumber(its_nodes or 0) }
