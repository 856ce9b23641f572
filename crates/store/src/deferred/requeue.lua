-- Moves dead letters back to the calls, as new ones.
--   KEYS[1] calls, KEYS[2] dead letters
--   ARGV[1] ID of the first dead letter, ARGV[2] that of the last, ARGV[3] maximum number
-- Returns the number of moved calls.

local entries = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
for _, entry in ipairs(entries) do
  for index = 1, #entry[2], 2 do
    if entry[2][index] == 'call' then redis.call('XADD', KEYS[1], '*', 'call', entry[2][index + 1]) end
  end
  redis.call('XDEL', KEYS[2], entry[1])
end
return #entries
