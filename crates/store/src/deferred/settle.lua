-- Settles a call after an attempt to send it.
--   KEYS[1] calls, KEYS[2] retries with their due times, KEYS[3] failed attempts of each call, KEYS[4] dead letters
--   ARGV[1] group, ARGV[2] consumer, ARGV[3] ID of the call
--   ARGV[4] 'sent'; 'retry' with ARGV[5] the pause in milliseconds and ARGV[6] the failed attempts;
--           or 'dead' with ARGV[5] the reason, ARGV[6] the failed attempts, ARGV[7] the last status,
--           and ARGV[8] the maximum number of dead letters
-- Returns 1, or 0 if another instance has taken over or settled the call, or the stream or its group is gone.

local calls, retries, attempts, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, id, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if outcome == 'retry' then
  local pending = redis.pcall('XPENDING', calls, group, id, id, 1)
  if pending.err then
    if pending.err:find('NOGROUP', 1, true) then return 0 end
    return pending
  end
  local owner = pending[1]
  if not owner or owner[2] ~= consumer then return 0 end
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if tonumber(ARGV[6]) > 0 then redis.call('HSET', attempts, id, ARGV[6]) end
  redis.call('ZADD', retries, now + ARGV[5], id)
  redis.call('XACK', calls, group, id)
  return 1
end

if outcome == 'dead' then
  local entry = redis.call('XRANGE', calls, id, id)[1]
  if entry then
    redis.call(
      'XADD', dead, 'MAXLEN', '~', ARGV[8], '*', 'reason', ARGV[5], 'attempts', ARGV[6], 'status', ARGV[7],
      'call', entry[2][2]
    )
  end
end
redis.pcall('XACK', calls, group, id)
local removed = redis.call('XDEL', calls, id)
redis.call('HDEL', attempts, id)
redis.call('ZREM', retries, id)
return removed
