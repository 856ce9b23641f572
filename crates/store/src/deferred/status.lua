-- Reports the state of a rule's calls.
--   KEYS[1] calls, KEYS[2] retries with their due times, KEYS[3] dead letters
--   ARGV[1] group, ARGV[2] maximum number of dead letters in the report
-- Returns the time of the store in microseconds, the numbers of stored calls, calls that instances hold, calls that wait
-- for a retry, and dead letters; the ID of the oldest call or ''; and for each of the newest dead letters
-- { ID, reason, attempts, status, the start of the call }.

local clock = redis.call('TIME')
local CALL_START = 64

local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
local held = type(pending) == 'table' and not pending.err and pending[1] or 0
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local letters = {}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', ARGV[2])) do
  local of = {}
  for index = 1, #entry[2], 2 do of[entry[2][index]] = entry[2][index + 1] end
  letters[#letters + 1] =
    { entry[1], of.reason or '', of.attempts or '', of.status or '', (of.call or ''):sub(1, CALL_START) }
end
return {
  clock[1] * 1000000 + clock[2],
  redis.call('XLEN', KEYS[1]),
  held,
  redis.call('ZCARD', KEYS[2]),
  redis.call('XLEN', KEYS[3]),
  first and first[1] or '',
  letters,
}
