-- vote.lua: the lock and its record; runs after guard.lua, before the scripts about one lock.
-- KEYS: 1 lock (the token as a plain string)  2 record ("<last> <number> <ttl ms> <renewals> <attempt,...> <token> <owner>", the attempts that use the vote, or "-" if it may be a lease; then a line feed, the start of the lease (ms), the name of the attempt that drew its number, or has to tell it, unless a majority may have confirmed that, and the name of a confirmation that may be taken back; with a "+" before it if claims wait: the highest fencing token that the node knows, and that of its lease, 0 if the node does not know it)
-- ARGV: those of the script that follows
-- Returns: nothing
local lock, record = KEYS[1], KEYS[2]
local TAKE_OVER = 2 ^ 20 -- The weight of a take-over among the renewals, as in src/lock/lease.rs.
local BRING_WITHIN = 1000 -- Milliseconds, as in src/store/redlock/refresh.rs.
local ANY = 2 ^ 53 -- Above every fencing token.
local MARKED_FOR = 5000 -- Milliseconds: longer than a call takes.
local kind = redis.call('TYPE', lock).ok
local value = kind == 'string' and redis.call('GET', lock) -- Another type is the lock of a direct Redis client.
local known = redis.pcall('GET', record)
known = type(known) == 'string' and known or ''
local last = tonumber(string.match(known, '^%+?(%d+)') or 0)
local number, its_ttl, renewals, attempt, holder, owner, since = string.match(known, '^%+?%d+ (%d+) (%d+) (%d+) (%S+) (%S+) ([^\n]*)(.*)$')
number, renewals = tonumber(number or 0), tonumber(renewals or 0)
local ours = value and value == holder
local start = tonumber(ours and string.match(since, '%d+') or nil)
local held = start and math.max(0, now - start) or -1 -- The time since the start of the lease; -1 if the record has none.
local drawer = ours and string.match(since, '^\n%d+ (%S+)$') or '' -- While this is known, no confirmed number depends on this one.
local function settled(since) -- The end of a record without the drawer.
  return string.match(since, '^\n?%d*')
end
local function counted(since) -- The end of a record whose number is counted as one that may be confirmed, unless it has a drawer.
  return drawer == '' and settled(since) or since
end
local function capped(ttl, max_hold) -- The TTL, or the time until the lease has lasted for `max_hold` on this node, if given. It ends no earlier than it would.
  if max_hold == '' then return tonumber(ttl) end
  return math.min(ttl, math.max((start or now) + max_hold - now, redis.call('PTTL', lock), 1))
end
local function expiry(ttl) -- A TTL for the lock of a lease that is renewed. A shorter one than it had counts for its holder at once, but the lock stays for as long as a refresh of before may bring the lease to other nodes.
  ttl = tonumber(ttl)
  return ttl < BRING_WITHIN and math.max(ttl, math.min(redis.call('PTTL', lock), BRING_WITHIN)) or ttl
end
local function set_at() -- When the lease got its TTL.
  return now + redis.call('PTTL', lock) - its_ttl
end
local function in_order(ttl, asked) -- The TTL of a lease that is renewed, and that of its lock. A request from before the lease got its TTL does not shorten it: the client may have gone on over another instance. The clock may have stepped back since, by no more than a call takes.
  local left, set = redis.call('PTTL', lock), ours and set_at() or 0
  if left > ttl and set > asked + 1 and set <= now + MARKED_FOR then return its_ttl, left end -- All are rounded to milliseconds.
  return ttl, expiry(ttl)
end
local function used_by(attempt, another) -- The attempts that use a vote, with another one.
  return attempt ~= '-' and #attempt < 500 and attempt .. ',' .. another or '-'
end
local function without(attempt, one) -- The attempts that use a vote but for one; the same if that does not use it.
  local all = string.gsub(',' .. attempt .. ',', ',' .. one .. ',', ',')
  return string.sub(all, 2, -2)
end
local function since_ms(age) -- The start of a lease of this age, as the record has it.
  return string.format('\n%.0f', now - age)
end
local function draw(proposal, floor) -- A proposal far ahead of this clock would use up the protection against loss.
  return math.max(last + 1, tonumber(floor), math.min(tonumber(proposal), now_us + 1000000))
end
local function write(mark, fields, keep)
  redis.call('SET', record, mark .. string.format('%.0f %.0f %.0f %.0f %s %s %s%s', unpack(fields)), 'PX', keep)
end
local function ended(whose) -- The mark of a lease that ended here: what was asked before must not bring it back.
  return 'lk//!' .. whose .. ' ' .. lock -- No token contains a space.
end
local function ended_up_to(whose) -- The number of the mark; -1 if there is none.
  return tonumber(redis.call('GET', ended(whose)) or -1)
end
local function ended_since(whose, moment) -- Whether the mark was left at this moment or later; a longer one is of before a step of the clock.
  local left = redis.call('PTTL', ended(whose))
  return left > 0 and left <= MARKED_FOR and now - (MARKED_FOR - left) >= moment
end
local function mark_ended(whose, number) -- Up to this fencing token, if given.
  redis.call('PEXPIRE', ended(whose), MARKED_FOR) -- A write that adds nothing comes first, so that the mark is set even at maxmemory.
  redis.pcall('SET', ended(whose), string.format('%.0f', number or ANY), 'PX', MARKED_FOR)
end
local function free() -- Frees the key, and sends a hint if claims wait.
  redis.call('DEL', lock)
  if string.sub(known, 1, 1) ~= '+' then return end
  redis.call('SET', record, string.sub(known, 2), 'KEEPTTL')
  redis.pcall('PUBLISH', 'lk//freed', lock) -- A hint; the permission may be missing.
end
