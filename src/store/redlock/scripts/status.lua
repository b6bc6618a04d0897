-- status.lua: tells when a node votes, and for which instances; after prelude.lua alone, so that
--   it writes nothing.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "voting" | "waiting" | "unseen" | "foreign" | "refuses", ms until it votes,
--   longest lease (ms) and number of nodes that it serves, why it would take no guard, or empty}
local word = now >= from and 'voting' or 'waiting'
if not own then word = 'foreign' end
if unseen then word = 'unseen' end
local why = redis.pcall('SET', guard, '', 'PX', 0).err -- Has no effect; the time is refused last.
if string.find(why, 'invalid expire', 1, true) then why = '' end
if why ~= '' and (unseen or not own) then word = 'refuses' end
return { now, word, math.max(0, from - now), its_longest, tonumber(its_nodes or 0), why }
