-- Confirms that a consumer still holds calls, so that no other instance claims them.
--   KEYS[1] calls
--   ARGV[1] group, ARGV[2] consumer, ARGV[3..] IDs of the calls
-- Returns how many calls the consumer still holds; none if the stream or its group is gone.

local kept = 0
for index = 3, #ARGV do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[index], ARGV[index], 1)
  if pending.err then
    if pending.err:find('NOGROUP', 1, true) then return 0 end
    return pending
  end
  local owner = pending[1]
  if owner and owner[2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[index], 'JUSTID')
    kept = kept + 1
  end
end
return kept
