-- force_release.lua: tells of the lock of the key on this node, or ends it if it is that of one holder, also a direct Redis client's of any type: others may be about to get the key. What the holder's token asked for before gets no vote.
-- KEYS: 1 lock  2 record (kept: the next fencing token must be higher)  3 guard; and the mark of an ended lease
-- ARGV: 1 "1" to end it  2 value of the lock that is ended, or empty for a direct Redis client's of any value  3 highest fencing token to end, or empty; the last one is the instance's settings
-- Returns: {now, "held", ms left, holder, fencing token, owner, ms held or -1} | {now, "free"}, also where another holder has it
local ends, whose, most = unpack(ARGV)
local its = value == whose or whose == '' and not ours
local meant = its and (most == '' or ours and number <= tonumber(most))
if ends == '1' and whose ~= '' and not its then mark_ended(whose) end
if kind == 'none' or ends == '1' and not meant then return { now, 'free' } end
local left = redis.call('PTTL', lock)
if ends == '1' then free() end
if ends == '1' and value then mark_ended(value) end
return { now, 'held', left, value or '', ours and number or 0, ours and owner or '', held }
