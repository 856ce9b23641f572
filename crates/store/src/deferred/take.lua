-- Takes calls to be sent: those whose retry is due, those of instances that have stopped, then new ones.
--   KEYS[1] calls, KEYS[2] retries with their due times, KEYS[3] failed attempts of each call
--   ARGV[1] group, ARGV[2] consumer, ARGV[3] maximum number of calls
--   ARGV[4] position from which calls of other consumers are inspected; empty to skip that
--   ARGV[5] time in milliseconds after which a call that its consumer has not confirmed is claimed
--   ARGV[6] maximum bytes of the calls; the last one may exceed it
-- Returns the time of the store in milliseconds, the next position to inspect, the number of claimed calls, the time
-- until the next retry in milliseconds or -1, and for each call { ID, failed attempts, call }.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local calls, retries, attempts = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, count, idle = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local bytes_left = tonumber(ARGV[6])
local INSPECTED = 100
-- Maximum number of calls that are claimed at once. They have waited for long, so they are taken whatever the limit has.
local CLAIMED = 32

local exists = pcall(redis.call, 'XPENDING', calls, group)
if not exists then redis.pcall('XGROUP', 'CREATE', calls, group, '0', 'MKSTREAM') end

local taken = {}

-- Adds entries; one that was deleted meanwhile has no fields.
local function add(entries)
  for _, entry in ipairs(entries) do
    if type(entry) == 'table' and entry[2] then
      local failed = tonumber(redis.call('HGET', attempts, entry[1]) or 0)
      taken[#taken + 1] = { entry[1], failed, entry[2][2] }
      bytes_left = bytes_left - #entry[2][2]
    end
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', retries, '-inf', now, 'LIMIT', 0, count)) do
  if bytes_left <= 0 then break end
  redis.call('ZREM', retries, id)
  add(redis.call('XCLAIM', calls, group, consumer, 0, id, 'FORCE'))
end

local position, claimed = ARGV[4], 0
if position ~= '' then
  local pending = redis.call('XPENDING', calls, group, position, '+', INSPECTED)
  position = #pending < INSPECTED and '-' or pending[#pending][1]
  for _, entry in ipairs(pending) do
    if claimed < CLAIMED and bytes_left > 0 and entry[3] >= idle then
      local before = #taken
      add(redis.call('XCLAIM', calls, group, consumer, idle, entry[1]))
      claimed = claimed + #taken - before
    end
  end
  -- Consumers of instances that have ended.
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', calls, group)) do
    local of = {}
    for index = 1, #info, 2 do of[info[index]] = info[index + 1] end
    if of.pending == 0 and of.idle > 3600000 and of.name ~= consumer then
      redis.call('XGROUP', 'DELCONSUMER', calls, group, of.name)
    end
  end
end

-- One by one, because their sizes are not known.
while #taken < count and bytes_left > 0 do
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', calls, '>')
  if not read then break end
  add(read[1][2])
end

local due = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')
local wait = due[2] and math.max(0, due[2] - now) or -1
return { now, position, claimed, math.floor(wait), taken }
