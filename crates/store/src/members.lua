-- Registers an instance until the registration expires.
--   KEYS[1] secret with which the fleet hashes keys, KEYS[2] instances with their expiry times
--   ARGV[1] secret that is stored if there is none, ARGV[2] instance, ARGV[3] validity of the registration in milliseconds,
--   ARGV[4] 1 if the secret replaces another one, which that of all regions does
-- Returns the secret and the number of instances.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local secret = redis.call('GET', KEYS[1])
if not secret or (ARGV[4] == '1' and secret ~= ARGV[1]) then
  secret = ARGV[1]
  redis.call('SET', KEYS[1], secret)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[2])
redis.call('PEXPIRE', KEYS[2], 10 * ARGV[3])
return { secret, redis.call('ZCARD', KEYS[2]) }
