-- Stands before each of the scripts. KEYS[1] is the key's hash:
--   number       of its attempt; a later attempt's is greater
--   fingerprint  of the attempt's request, as 32 bytes
--   since        when it was claimed
--   claim, until only while it runs: the claim's id, and the end of its lease
--   expires, status, header, body: only once it has ended
-- All times are microseconds since 1970 by this server's clock.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2] -- exact in a double until the year 2255

-- Lua's own tostring rounds to 14 digits.
local function decimal(n)
  return string.format('%.0f', n)
end

-- Redis forgets the key by itself, at the end of the millisecond. To the
-- microsecond it is the scripts that look.
local function forget(at)
  redis.call('PEXPIREAT', KEYS[1], decimal(math.ceil(at / 1000)))
end
