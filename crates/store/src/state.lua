-- Time, generation and values of a store. A script of the store begins with it: KEYS[1] is the generation of its group,
-- ARGV[1] the generation that the instance knows, or "-", ARGV[2] the run_id of the server, and ARGV[3] the ID of a new
-- generation, used if the group has none.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local SECOND = 1000000

-- Time since which no write was lost, after a loss of data; 0 if no data was lost.
local born = 0
local generation

do
  local known, run, new = ARGV[1], ARGV[2], ARGV[3]
  local text = redis.call('GET', KEYS[1])
  local id, of_run, since
  if text then id, of_run, since = text:match('^(%S+) (%S+) (%S+)$') end
  if not id then
    -- If the instance knew a generation, the store has lost its data.
    id, of_run, since = new, run, known == '-' and 0 or now
    redis.call('SET', KEYS[1], id .. ' ' .. of_run .. ' ' .. string.format('%.0f', since))
  elseif of_run ~= run or (known ~= '-' and known ~= id and since == '0') then
    -- Either this is another server process, which may lack the last writes of the previous one. Or the store has lost
    -- its data, and an instance that had just started has created the generation without knowing the previous one.
    of_run, since = run, now
    redis.call('SET', KEYS[1], id .. ' ' .. of_run .. ' ' .. string.format('%.0f', since))
  end
  generation, born = id, tonumber(since)
end

local function numbers(text)
  local list = {}
  for word in text:gmatch('%S+') do list[#list + 1] = tonumber(word) end
  return list
end

-- State is stored as binary doubles: formatting and parsing numbers as text would take most of the time.
local function load(key)
  local text = redis.call('GET', key)
  if not text then return end
  local list = { struct.unpack('<' .. ('d'):rep(#text / 8), text) }
  -- The last value is the offset after the data.
  list[#list] = nil
  return list
end

local function save(key, list, microseconds)
  local state = struct.pack('<' .. ('d'):rep(#list), unpack(list))
  redis.call('SET', key, state, 'PX', math.ceil(microseconds / 1000) + 1000)
end
