-- Confirms that a consumer still holds calls, so that no other instance claims them.
--   KEYS[1] calls
--   ARGV[1] group, ARGV[2] consumer, ARGV[3..] IDs of the calls
-- Returns how many calls the consumer still holds.

local kept = 0
for index = 3, #ARGV do
  local owner = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[index], ARGV[index], 1)[1]
  if owner and owner[2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[index], 'JUSTID')
    kept = kept + 1
  end
end
return kept
