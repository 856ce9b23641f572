-- Appends a call to a rule's stream, unless that is full.
--   KEYS[1] calls
--   ARGV[1] call, ARGV[2] maximum number of stored calls, ARGV[3] time in microseconds after which nothing is appended,
--   because the instance has stopped waiting; 0 for none
-- Returns the time of the store in microseconds, and 'stored', 'full' or 'late'.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local deadline = tonumber(ARGV[3])
if deadline > 0 and now > deadline then return { now, 'late' } end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[2]) then return { now, 'full' } end
redis.call('XADD', KEYS[1], '*', 'call', ARGV[1])
return { now, 'stored' }
