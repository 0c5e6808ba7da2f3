-- Tells what stands under the key, and changes nothing.

local h = redis.call('HMGET', KEYS[1], 'fingerprint', 'since', 'until', 'expires', 'status', 'header', 'body')
if h[4] and now < tonumber(h[4]) then
  return {'record', h[1], h[2], h[4], h[5], h[6], h[7]}
end
if h[3] and now < tonumber(h[3]) then
  return {'running', h[1]}
end
return {'nothing'}
