-- admit.lua: makes a node vote at once, whatever it may have forgotten.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "admitted", ms that it would have waited} | {now, "voting" | "foreign"} |
--   {now, "refuses", 0, why}
local left = math.max(0, from - now)
local word = voting and 'voting' or own and serve(0) and 'admitted' or 'foreign'
if refused and not voting then return { now, 'refuses', 0, refused } end
return { now, word, left }
