-- Registers an instance for a while.
--   KEYS[1] the secret under which the fleet hashes keys, KEYS[2] the instances with when they lapse
--   ARGV[1] a secret, should there be none, ARGV[2] the instance, ARGV[3] how long it counts without a word, in milliseconds
-- It returns the secret and the number of instances.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local secret = redis.call('GET', KEYS[1])
if not secret then
  secret = ARGV[1]
  redis.call('SET', KEYS[1], secret)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[2])
redis.call('PEXPIRE', KEYS[2], 10 * ARGV[3])
return { secret, redis.call('ZCARD', KEYS[2]) }
