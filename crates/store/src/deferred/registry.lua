-- Adds rules to those that have stored calls.
--   KEYS[1] names of the rules
--   ARGV[1..] names to add
-- Returns all names.

for index = 1, #ARGV do redis.call('SADD', KEYS[1], ARGV[index]) end
return redis.call('SMEMBERS', KEYS[1])
