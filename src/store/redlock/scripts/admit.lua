-- admit.lua: makes a node vote at once, whatever it may have forgotten; one that serves other
--   settings serves these from now on, and votes when the leases of the others have expired.
-- KEYS: 1 guard
-- ARGV: the instance's settings
-- Returns: {now, "admitted", ms that it would have waited} | {now, "taken", ms until it votes} |
--   {now, "voting"} | {now, "refuses", 0, why}
local left, word = math.max(0, from - now), 'voting'
if not own then
  word = wait() and 'taken'
  left = from - now
elseif not voting then
  word = serve(0) and 'admitted'
end
if refused and not voting then return { now, 'refuses', 0, refused } end
return { now, word, left }
