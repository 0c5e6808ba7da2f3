-- Frees the key, if the attempt of number ARGV[1] still holds it. A record stays.

local h = redis.call('HMGET', KEYS[1], 'number', 'until')
if h[1] == ARGV[1] and h[2] then
  redis.call('DEL', KEYS[1])
end
return {'freed'}
