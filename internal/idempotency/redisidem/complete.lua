-- Makes an attempt's work and answer permanent, together. ARGV: the attempt's
-- number, the TTL in microseconds, status, header and body of the answer; then for
-- each command of the work how many words it has beside its key, and the words.
-- KEYS[2] and on are the commands' keys, one for each.

local h = redis.call('HMGET', KEYS[1], 'number', 'since', 'until')
if h[1] ~= ARGV[1] then
  return {'superseded'}
end
if not h[3] then -- sent again, because its answer was lost
  return {'kept'}
end
if now >= tonumber(h[3]) then
  return {'superseded'}
end

-- Redis does not undo what a script did before one of its commands failed. The
-- last command needs no undoing: where it fails, it has done nothing.
local before = {}
for k = 2, #KEYS - 1 do
  before[k] = {redis.call('DUMP', KEYS[k]), redis.call('PEXPIRETIME', KEYS[k])}
end

local at = 6
for k = 2, #KEYS do
  local words = tonumber(ARGV[at])
  local r = redis.pcall(ARGV[at + 1], KEYS[k], unpack(ARGV, at + 2, at + words))
  if type(r) == 'table' and r.err then
    for done, was in pairs(before) do
      redis.call('DEL', KEYS[done])
      if was[1] then
        redis.call('RESTORE', KEYS[done], math.max(was[2], 0), was[1], 'ABSTTL')
      end
    end
    redis.call('DEL', KEYS[1])
    return {'failed', r.err}
  end
  at = at + words + 1
end

local expires = h[2] + ARGV[2]
redis.call('HDEL', KEYS[1], 'claim', 'until')
redis.call('HSET', KEYS[1], 'expires', decimal(expires), 'status', ARGV[3], 'header', ARGV[4], 'body', ARGV[5])
forget(expires)
return {'kept'}
