-- admit.lua: makes a node vote at once, whatever it may have forgotten.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "admitted", ms that it would have waited} | {now, "voting" | "foreign"}
if not own or voting then return { now, own and 'voting' or 'foreign' } end
local left = from - now
return { now, serve(0) and 'admitted' or 'foreign', left }
