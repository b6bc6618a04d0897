-- release.lua: gives up what a token has on this node, if it is what the caller means.
-- KEYS: 1 lock  2 record (kept: the next fencing token has to be higher)  3 guard
-- ARGV: 1 not after (ms), or empty  2 "1" if a restarted node is trusted  3 token  4 renewals that a keeper knows, or empty  5 attempt that is cleaned up, or empty  6 highest fencing token that is meant, or empty
-- Returns: {now, "lease", fencing token, owner} | {now, "nothing"} | {now, "blank"} | {now, "late"}
local not_after, trust, token, kept, its_attempt, most = unpack(ARGV)
if not_after ~= '' and now > tonumber(not_after) then return { now, 'late' } end
local meant = value == token
  and (kept == '' or renewals <= tonumber(kept))
  and (its_attempt == '' or ours and attempt == its_attempt)
  and (most == '' or ours and number <= tonumber(most))
if meant then
  free()
  return { now, 'lease', ours and number or 0, ours and owner or '' }
end
return { now, voting(trust) and 'nothing' or 'blank' }
