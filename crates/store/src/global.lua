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
-- State of a limit: the end of the window in which units were given up last, the region whose turn it is and since when, and
-- for each region its number, its allotment in parts of WHOLE, the time of its last report, for how long it may use the
-- allotment, after which time nothing matters that it has spent, its demand, the number of its last errand, the least allotment
-- that serves a request, and the end of its last turn.

local WHOLE = 1048576
-- Time after which the demand of a region counts no more.
local DEMAND_AGE = 5 * SECOND
local SOON, LATER, IDLE = SECOND * 3 / 10, SECOND, 15 * SECOND
-- Maximum time for which one region has all of an allotment that is too small for several.
local MAX_TURN = 60 * SECOND
-- Time after which all regions that reach this store have reported their allotments.
local REPORTED_AFTER = 20 * SECOND

local FIELDS = { 'id', 'parts', 'at', 'valid', 'settle', 'demand', 'number', 'least', 'turn_ended' }

local function load_regions(key, id)
  local s = load(key) or { 0, 0, 0 }
  local all, mine = { window = s[1], turn = s[2], turn_since = s[3] }, nil
  for index = 4, #s, #FIELDS do
    local it = {}
    for place, field in ipairs(FIELDS) do it[field] = s[index + place - 1] end
    -- What a region has spent of an allotment that has ended matters until then.
    if now < it.at + it.valid + it.settle then
      all[#all + 1] = it
      if it.id == id then mine = it end
    end
  end
  if not mine then
    mine = { id = id, parts = 0, at = 0, demand = 0, number = 0, least = 0, turn_ended = 0 }
    all[#all + 1] = mine
  end
  return all, mine
end

local function save_regions(key, all)
  local list, longest = { all.window, all.turn, all.turn_since }, 0
  for _, it in ipairs(all) do
    longest = math.max(longest, it.valid + it.settle)
    for _, field in ipairs(FIELDS) do list[#list + 1] = it[field] end
  end
  save(key, list, longest)
end

-- Sets the allotment that each region is to have: its part of the demand, in whole units if there are few.
local function set_targets(all, total, unit)
  local left = WHOLE
  for _, it in ipairs(all) do
    local share = total > 0 and WHOLE * it.demand / total or 0
    it.target = math.floor(share / unit + 0.000001) * unit
    it.rest = share - it.target
    left = left - it.target
  end
  local by_rest = { unpack(all) }
  table.sort(by_rest, function(a, b) return a.rest > b.rest or (a.rest == b.rest and a.id < b.id) end)
  for _, it in ipairs(by_rest) do
    if it.demand <= 0 or left < unit then break end
    it.target, left = it.target + unit, left - unit
  end
end

-- If a region that lacked units would have too little for any request, regions have all of the allotment in turn.
local function take_turns(all, total, unit)
  local lacks, in_turn, next
  for _, it in ipairs(all) do
    if it.demand > 0 then
      lacks = lacks or (it.least > 0 and it.target < math.max(unit, it.least))
      if it.id == all.turn then in_turn = it end
      if not next or it.turn_ended < next.turn_ended then next = it end
    end
  end
  if not lacks then
    all.turn = 0
    return
  end
  local length = in_turn and math.min(in_turn.settle, MAX_TURN) * in_turn.demand / total
  if not in_turn or now >= all.turn_since + math.max(SECOND, length) then
    if in_turn then in_turn.turn_ended = now end
    for _, it in ipairs(all) do
      if it.demand > 0 and it.turn_ended < next.turn_ended then next = it end
    end
    all.turn, all.turn_since = next.id, now
  end
  for _, it in ipairs(all) do it.target = it.id == all.turn and WHOLE or 0 end
end

local function report(key, id, parts, number, demand, in_use, window, valid, settle, unit, complete, least)
  local all, mine = load_regions(key, id)
  if number <= mine.number then return { -1, 0, 0, 0 } end
  -- An allotment that has ended in the region, or that its store has lost, is still in use as far as it was spent.
  local known = math.max(parts, math.min(mine.parts, in_use))
  -- What this store has known since before a loss of data says nothing: other regions may have got it meanwhile.
  if mine.at < born and now < born + valid + settle then known = parts > 0 and parts or in_use end
  if known < mine.parts then all.window = math.max(all.window, window) end
  mine.parts, mine.at, mine.valid, mine.settle, mine.demand, mine.number, mine.least =
    known, now, valid, settle, demand, number, least
  local free, total, longest = WHOLE, 0, 0
  for _, it in ipairs(all) do
    if now >= it.at + DEMAND_AGE then it.demand = 0 end
    free, total = free - it.parts, total + it.demand
    longest = math.max(longest, it.valid + it.settle)
  end
  -- After a loss of data, regions may have allotments of which this store knows nothing any more.
  if born > 0 and now < born + (complete == 1 and REPORTED_AFTER or longest) then free = -1 end
  -- What is in use without an allotment is held back for as long as others may have it.
  local held = free < 0 and known - parts or 0
  set_targets(all, total, unit)
  take_turns(all, total, unit)
  local target, others_lack = mine.target, false
  for _, it in ipairs(all) do
    if it ~= mine and it.parts + WHOLE / 32 < it.target then others_lack = true end
  end
  local added = math.max(0, math.min(free, target - mine.parts))
  if added < WHOLE then added = math.floor(added / unit + 0.000001) * unit end
  mine.parts = mine.parts + added
  -- Small corrections are not worth a change of the limit.
  if mine.parts > target and mine.parts - target < WHOLE / 16 and target > WHOLE / 8 then target = mine.parts end
  save_regions(key, all)
  local again = LATER
  if mine.demand <= 0 then
    again = mine.parts > 0 and IDLE or 0
  elseif others_lack or mine.parts + WHOLE / 64 < target then
    again = SOON
  end
  return { math.floor(mine.parts - parts - held), math.floor(target), math.min(again, valid / 4), all.window }
end

local replies = { generation }
for index = 2, #KEYS do
  replies[#replies + 1] = report(KEYS[index], unpack(numbers(ARGV[index + 2])))
end
return replies
