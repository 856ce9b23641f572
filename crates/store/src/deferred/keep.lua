-- Confirms that a consumer still holds calls, so that no other instance claims them.
--   KEYS[1] calls
--   ARGV[1] group, ARGV[2] consumer, ARGV[3..] IDs of the calls
-- Returns the IDs of calls that are stored and that the consumer does not hold, and of those that are not stored; none
-- if the stream or its group is gone.

local lost, missing = {}, {}
for index = 3, #ARGV do
  local id = ARGV[index]
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if pending.err then
    if pending.err:find('NOGROUP', 1, true) then return { {}, {} } end
    return pending
  end
  local owner = pending[1]
  if owner and owner[2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
  elseif redis.call('XRANGE', KEYS[1], id, id)[1] then
    lost[#lost + 1] = id
  else
    missing[#missing + 1] = id
  end
end
return { lost, missing }
