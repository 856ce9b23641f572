-- Script of the global store: allots parts of a limit to the regions that share it. state.lua precedes it.
-- docs/design/025-regions.md has the protocol and its proof.
--
--   KEYS[1]     generation of the group; ARGV[1..3] as in script.lua
--   KEYS[2..]   allotments of a limit
--   ARGV[4..]   for each the report of an errand: numbers, separated by spaces
-- Returns the generation, and for each report { parts, target, again, window }: what is added to the allotment of the region,
-- what it is to have, the time in microseconds after which it is to report again, and the window from which on it may be
-- used. A report that is older than the last one changes nothing, and its parts are -1.
--
-- State of a limit: the end of the window in which units were given up last, and for each region its number, its allotment in
-- parts of WHOLE, the time of its last report, for how long it may use the allotment, after which time nothing matters that
-- it has spent, its demand, and the number of its last errand.

local WHOLE = 1048576
-- Time after which the demand of a region counts no more.
local DEMAND_AGE = 5 * SECOND
local SOON, LATER, IDLE = SECOND * 3 / 10, SECOND, 15 * SECOND
-- Time after which all regions that reach this store have reported their allotments.
local REPORTED_AFTER = 20 * SECOND

local function load_regions(key, id)
  local s = load(key) or { 0 }
  local regions, mine = {}, nil
  for index = 2, #s, 7 do
    local it = { id = s[index], parts = s[index + 1], at = s[index + 2], valid = s[index + 3], settle = s[index + 4],
      demand = s[index + 5], number = s[index + 6] }
    -- What a region has spent of an allotment that has ended matters until then.
    if now < it.at + it.valid + it.settle then
      regions[#regions + 1] = it
      if it.id == id then mine = it end
    end
  end
  if not mine then
    mine = { id = id, parts = 0, at = now, demand = 0, number = 0 }
    regions[#regions + 1] = mine
  end
  return regions, mine, s[1]
end

local function save_regions(key, regions, window)
  local list, longest = { window }, 0
  for _, it in ipairs(regions) do
    longest = math.max(longest, it.valid + it.settle)
    for _, number in ipairs({ it.id, it.parts, it.at, it.valid, it.settle, it.demand, it.number }) do
      list[#list + 1] = number
    end
  end
  save(key, list, longest)
end

-- Returns the allotment that a region is to have: its part of the demand, in whole units if there are few.
local function target_of(it, total, unit)
  if it.demand <= 0 or total <= 0 then return 0 end
  return math.min(WHOLE, math.floor(WHOLE * it.demand / total / unit + 0.5) * unit)
end

local function report(key, id, parts, number, demand, in_use, window, valid, settle, unit, complete)
  local regions, mine, given_in = load_regions(key, id)
  if number <= mine.number then return { -1, 0, 0, 0 } end
  -- An allotment that has ended in the region, or that its store has lost, is still in use as far as it was spent.
  local known = math.max(parts, math.min(mine.parts, in_use))
  if known < mine.parts then given_in = math.max(given_in, window) end
  mine.parts, mine.at, mine.valid, mine.settle, mine.demand, mine.number = known, now, valid, settle, demand, number
  local free, total, others_lack = WHOLE, 0, false
  for _, it in ipairs(regions) do
    if now >= it.at + DEMAND_AGE then it.demand = 0 end
    free, total = free - it.parts, total + it.demand
  end
  local longest = 0
  for _, it in ipairs(regions) do
    longest = math.max(longest, it.valid + it.settle)
    if it ~= mine and it.parts + WHOLE / 32 < target_of(it, total, unit) then others_lack = true end
  end
  -- After a loss of data, regions may have allotments of which this store knows nothing any more.
  if born > 0 and now < born + (complete == 1 and REPORTED_AFTER or longest) then free = 0 end
  local target = target_of(mine, total, unit)
  local added = math.max(0, math.min(free, target - mine.parts))
  if added < WHOLE then added = math.floor(added / unit + 0.000001) * unit end
  mine.parts = mine.parts + added
  -- Small corrections are not worth a change of the limit.
  if mine.parts > target and mine.parts - target < WHOLE / 16 and target > WHOLE / 8 then target = mine.parts end
  save_regions(key, regions, given_in)
  local again = LATER
  if mine.demand <= 0 then
    again = mine.parts > 0 and IDLE or 0
  elseif others_lack or mine.parts + WHOLE / 64 < target then
    again = SOON
  end
  return { math.floor(mine.parts - parts), math.floor(target), math.min(again, valid / 4), given_in }
end

load_generation()
local replies = { generation }
for index = 2, #KEYS do
  replies[#replies + 1] = report(KEYS[index], unpack(numbers(ARGV[index + 2])))
end
return replies
