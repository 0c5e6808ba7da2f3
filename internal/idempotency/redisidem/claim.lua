-- Decides about one request. ARGV: the claim's id, the request's fingerprint, the
-- lease in microseconds. It is told of the record that lives, of the request that
-- runs, or that it may run, by which number and since when.

local h = redis.call('HMGET', KEYS[1], 'number', 'fingerprint', 'since', 'claim', 'until', 'expires', 'status', 'header', 'body')
local number, fingerprint, since, claim, lease_end, expires = h[1], h[2], h[3], h[4], h[5], h[6]

if expires and now < tonumber(expires) then
  return {'record', fingerprint, since, expires, h[7], h[8], h[9]}
end
if lease_end and now < tonumber(lease_end) then
  if claim == ARGV[1] then -- sent again, because its answer was lost
    return {'fresh', number, since}
  end
  return {'running', fingerprint}
end

-- The time is greater than the number of any attempt that is forgotten, so that
-- numbers need not be kept; where the clock was set back, the last one tells.
local next_number = decimal(math.max(now, (tonumber(number) or 0) + 1))
local started, ends = decimal(now), now + ARGV[3]
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'number', next_number, 'fingerprint', ARGV[2], 'since', started,
  'claim', ARGV[1], 'until', decimal(ends))
forget(ends)
return {'fresh', next_number, started}
