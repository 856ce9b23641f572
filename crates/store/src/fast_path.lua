-- What most calls are about: units of a bucket for requests that wait, none in advance. state.lua precedes it.
--
-- Decides these like `bucket` in counters.lua, which handles everything, at half of the time: without tables, and before any
-- function of the files behind this one is created, which each call of the script has to do anew. Requests that it does not
-- decide change nothing here.

-- Units of one grant are all spent or returned after this time, in addition to their validity.
local RETURN_TIME = SECOND * 2 / 5
-- Number of units that stands for "unknown".
local UNKNOWN = 2 ^ 40

-- Returns the time by which all units that are out have been spent or returned, with a grant that is valid for `valid`.
local function returned_by(before, granted, valid)
  if granted == 0 then return before end
  return math.max(before, now + math.max(valid, SECOND / 50) + RETURN_TIME)
end

-- Returns the last number of a bucket's state: the units granted since it was last unused, times 4096, and the milliseconds
-- after which all units that are out have been spent or returned.
local function pack_use(used, out_until)
  return math.min(UNKNOWN, math.ceil(used - 0.000001)) * 4096 + math.max(0, math.min(4095, math.ceil((out_until - now) / 1000)))
end

-- Maximum number of slices of past time in a bucket's state, and the time after which another begins.
local SLICES = 6
local function slice_length(valid) return math.max(SECOND / 20, valid / 4) end

-- Time constant of the demand for a bucket.
local function demand_time(interval) return math.min(60 * SECOND, math.max(SECOND, 100 * interval)) end

-- A bucket's state up to its latest slice, any other one, and the number behind the slices.
local HEAD, SLICE, USE = '<ddddddddddddd', '<dd', '<d'
local HEAD_BYTES, SLICE_BYTES, USE_BYTES = 13 * 8, 2 * 8, 8

-- A request without max-min fairness, with nothing returned or owed.
local QUESTION = '^b (%S+) (%S+) (%S+) (%S+) 0 (%S+) (%S+) (%S+) (%S+) (%S+) 0 %S+ 0 '

-- Returns the reply to a request, or nothing if it is to be decided with all of the functions.
local function decide_at_once(key, question)
  local interval, burst, valid, priority, weight, needed, wanted, demanded, elapsed = question:match(QUESTION)
  if not interval then return end
  interval, burst, valid, needed = tonumber(interval), tonumber(burst), tonumber(valid), tonumber(needed)
  local full, over = burst * interval, demand_time(interval)
  if needed == 0 or needed < tonumber(wanted) or born > 0 and now - born < full + SECOND then return end
  local backlog, longest, cap, d1, d2, d3, d4, d5, used, out_until = 0, 0, SECOND / interval, 0, 0, 0, 0, 0, 0, now
  local at, busy_until, old_interval, began, low, slices
  local state = redis.call('GET', key)
  if state then
    -- A state of an earlier version lacks the last number.
    if #state < HEAD_BYTES + USE_BYTES or #state % SLICE_BYTES > 0 then return end
    at, backlog, longest, busy_until, old_interval, cap, d1, d2, d3, d4, d5, began, low = struct.unpack(HEAD, state)
    if old_interval ~= interval then return end
    local use = struct.unpack(USE, state, #state - USE_BYTES + 1)
    local since = math.max(0, now - at)
    local fading = math.exp(-since / over)
    d1, d2, d3, d4, d5 = d1 * fading, d2 * fading, d3 * fading, d4 * fading, d5 * fading
    backlog = math.max(0, backlog - since)
    if now >= busy_until + longest then longest = 0 end
    if backlog > 0 or longest > 0 then used = math.floor(use / 4096) end
    out_until = at + use % 4096 * 1000
    low = math.min(low, backlog)
  end
  local covered = math.max(longest, valid)
  local room = math.floor((full - covered - backlog) / interval + 0.000001)
  room = math.max(0, room, math.floor(burst - used + 0.000001))
  local added, higher = demanded * weight * SECOND / over, 0
  if priority == '0' then
    d1 = d1 + added
  elseif priority == '1' then
    d2, higher = d2 + added, d1
  elseif priority == '2' then
    d3, higher = d3 + added, d1 + d2
  else
    d4, higher = d4 + added, d1 + d2 + d3
  end
  -- Part of the burst is reserved.
  if higher > SECOND / interval / 100 then return end
  d5 = d5 + math.min(tonumber(elapsed), over) / over
  local granted, wait, spread = needed, 0, 0
  if needed > room then
    granted, wait = 0, math.ceil(backlog + needed * interval - (full - covered))
    -- Requests may get what is left, and wait for what others return.
    if room > 0 or backlog == 0 or wait > 2 * SECOND then return end
    spread, covered = math.min(SECOND, d5 * interval), longest
  end
  if backlog == 0 then
    began, low, slices = now, granted * interval, ''
  else
    slices = state:sub(HEAD_BYTES + 1, -USE_BYTES - 1)
    if now - began >= slice_length(math.max(valid, longest)) then
      slices = (struct.pack(SLICE, began, low) .. slices):sub(1, (SLICES - 1) * SLICE_BYTES)
      began, low = now, backlog
    end
  end
  backlog, used, out_until = backlog + granted * interval, used + granted, returned_by(out_until, granted, valid)
  state = struct.pack(HEAD, now, backlog, covered, now + backlog, interval, cap, d1, d2, d3, d4, d5, began, low)
    .. slices .. struct.pack(USE, pack_use(used, out_until))
  redis.call('SET', key, state, 'PX', math.ceil((backlog + covered + over) / 1000) + 1000)
  return { granted, valid, wait, math.floor(spread), 0, math.max(0, math.floor((full - backlog) / interval + 0.000001)) }
end

local replies = { generation, string.format('%.0f', now), -1 }
local is_complete = ARGV[4] == '-'
for index = 3, #ARGV - 2 do
  local reply = decide_at_once(KEYS[index], ARGV[index + 2])
  is_complete = is_complete and reply
  replies[index + 1] = reply or false
end
if is_complete then return replies end
