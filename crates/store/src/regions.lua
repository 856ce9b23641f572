-- Allotments: what a region may count of a limit that several regions share. Follows counters.lua, precedes script.lua.
-- docs/design/025-regions.md has the protocol and its proof.
--
-- A region counts a limit with its stock, which is always its own, and with its allotment, which moves between regions. An
-- errand reports the allotment to the global store, which may add to it, and comes back with a deposit.
-- State: the allotment in parts of WHOLE, the time until which it is valid, when this state began, the number of the last
-- errand and its time, 1 while its deposit is awaited, the allotment that the global store wants, the time of the next errand,
-- the demand in units per second, its time, the demand that the last errand reported, the least units that were needed and not
-- left since then, and the lowest allotment since the last refill.

-- Called by the first request about a limit that regions share: creating the functions takes time in each call of the script.
local function open_regions()
  -- Part of a limit's rate at which the stock of all regions together fills.
  local STOCK_RATE = 1 / 32
  -- Minimum time between two errands for a counter, and time for which no other instance is sent on the same one.
  local MIN_ERRAND_INTERVAL, ERRAND_TIME = SECOND / 4, SECOND
  -- Time after which an instance asks again for a limit that is used up, since other regions may give theirs up.
  local IDLE_POLL = 2 * SECOND
  -- Parts of a unit that rounding may add. All regions together stay below one unit.
  local ROUNDING = 1 / 32

  local function open_allotment(key, q)
    local s = load(key)
    if s and (s[3] >= born or now >= born + q.valid + q.settle) and (q.keeps == 1 or now < s[2] or s[1] == 0) then
      return { parts = s[1], ends = s[2], began = s[3], number = s[4], sent = s[5], awaited = s[6], target = s[7], due = s[8],
        demand = s[9], at = s[10], reported = s[11], lacked = s[12], low = s[13] }
    end
    -- Nothing of an earlier allotment is known: the global store tells.
    return { parts = 0, ends = 0, began = now, number = s and s[4] or 0, sent = 0, awaited = 0, target = 0, due = 0,
      demand = s and s[9] or 0, at = s and s[10] or now, reported = 0, lacked = 0, low = 0 }
  end

  local function save_allotment(key, it, q)
    save(key, { it.parts, it.ends, it.began, it.number, it.sent, it.awaited, it.target, it.due, it.demand, it.at, it.reported,
      it.lacked, it.low },
      2 * (q.valid + q.settle))
  end

  -- Adds `demanded` units to the demand, which decays exponentially with the time constant q.over.
  local function note_region_demand(it, demanded, q)
    it.demand = it.demand * math.exp(-math.max(0, now - it.at) / q.over) + demanded * SECOND / q.over
    it.at = now
  end

  -- Units of a limit that count as spent or may still be spent, from the state of its counter.
  local occupied = {}

  function occupied.b(s)
    local late = now < s[4] + s[3] and s[3] or 0
    return (math.max(0, s[2] - math.max(0, now - s[1])) + late) / s[5]
  end

  function occupied.w(s, list)
    if s[1] == (now >= list[14] and list[15] or list[14]) then return s[2] end
    return math.max(0, s[2] - list[1])
  end

  function occupied.s(s, list)
    local oldest, units = math.floor(now / (list[2] / list[3])) - list[3], 0
    for index = 7, #s, 2 do
      if s[index] >= oldest then units = units + s[index + 1] end
    end
    return units
  end

  function occupied.r(s) return s[2] end

  -- Returns the units of the limit that the region has, and the fraction of the rate.
  local function region_part(it, kind, q)
    if q.movable <= 0 then return q.stock, 1 / q.regions end
    -- Tokens come at marks, for all the time since the last one.
    local rate = STOCK_RATE / q.regions + (1 - STOCK_RATE) * (kind == 'r' and it.low or it.parts) / WHOLE
    return q.stock + math.floor(q.movable * it.parts / WHOLE + ROUNDING), math.max(rate, 1 / WHOLE)
  end

  -- Records the lowest allotment since the last refill of a counter, whose time was `before`.
  local function note_lowest(it, key, kind, before)
    if kind ~= 'r' then return end
    local s = load(key)
    it.low = s and s[1] == before and math.min(it.low, it.parts) or it.parts
  end

  local function refilled_at(key, kind)
    local s = kind == 'r' and load(key)
    return s and s[1]
  end

  -- Lets the counter drain at the rate that the region has had until now, and from now on.
  local function drain(key, kind, list, it, q)
    if kind ~= 'b' and kind ~= 'r' then return end
    local idle = { unpack(list) }
    local units, needed = unpack(places[kind])
    for _, place in ipairs({ 0, 1, 2, 3, 4, 6 }) do idle[needed + place] = 0 end
    local left, rate = region_part(it, kind, q)
    local before = refilled_at(key, kind)
    decide_part(key, kind, idle, math.max(1, left), rate, left)
    note_lowest(it, key, kind, before)
  end

  -- Whether units may be in use that the counter does not know any more.
  local function may_have_lost(key, kind, q)
    if born == 0 or now >= born + q.settle then return false end
    local s = load(key)
    return not s or s[(kind == 'b' or kind == 's') and 1 or 3] < born
  end

  -- Whether the deposit of an errand may still come.
  local function is_awaited(it, q) return it.awaited == 1 and now < it.sent + q.valid / 4 end

  -- Returns the allotment without which units that are in use would have no place.
  local function parts_in_use(key, kind, list, q)
    if may_have_lost(key, kind, q) then return WHOLE end
    local s = load(key)
    local units = s and occupied[kind](s, list) or 0
    return math.min(WHOLE, math.ceil(math.max(0, units - q.stock - ROUNDING) / q.movable * WHOLE))
  end

  -- Lowers the allotment to what the global store wants, as far as it is not in use. Then other regions may get the rest.
  local function give_up_unused(it, key, kind, list, q)
    if it.parts <= it.target then return end
    drain(key, kind, list, it, q)
    it.parts = math.max(it.target, math.min(it.parts, parts_in_use(key, kind, list, q)))
    drain(key, kind, list, it, q)
  end

  -- Decides a request with the units of this region.
  local function decide_regional(key, kind, list, it, q)
    local asks_after = polls_after(kind, list)
    local left, rate = region_part(it, kind, q)
    local reply = { 0, 0, asks_after, asks_after / 4, 0, 0 }
    -- After a loss of data it is not known how much of the limit the region had, until the global store has told.
    if q.movable == 0 or it.ends > 0 or not may_have_lost(key, kind, q) then
      local before = refilled_at(key, kind)
      reply = decide_part(key, kind, list, left, rate, left) or reply
      note_lowest(it, key, kind, before)
    end
    local needed = list[places[kind][2]]
    if reply[1] < needed then it.lacked = it.lacked > 0 and math.min(it.lacked, needed) or needed end
    if q.movable > 0 and it.parts < WHOLE then
      -- More may come at any time, and an instance that does not ask has no demand.
      local is_due = it.number == 0 or is_awaited(it, q) or it.parts < it.target
      local most = is_due and asks_after or math.max(asks_after, IDLE_POLL)
      for index = 3, 5 do reply[index] = math.min(reply[index], most) end
    end
    return reply
  end

  -- Whether an instance is to go on an errand.
  local function is_errand_due(it, q)
    if now >= it.due then return true end
    if is_awaited(it, q) or now < it.sent + MIN_ERRAND_INTERVAL then return false end
    return it.parts < it.target or it.demand > 1.5 * it.reported
  end

  -- Returns the demand in thousandths of units per second. A demand of long ago is none.
  local function reported_demand(it, q)
    return it.demand * q.over < SECOND / 16 and 0 or math.ceil(it.demand * 1000)
  end

  local function begin_errand(it)
    it.number = math.max(it.number + 1, now)
    it.sent, it.awaited, it.due, it.reported, it.lacked = now, 1, now + ERRAND_TIME, it.demand, 0
  end

  -- Adds what the global store has allotted on the errand `number`.
  local function deposit(it, q, number, parts, target, again)
    if number ~= it.number or not is_awaited(it, q) then return 0 end
    it.parts, it.target, it.awaited = math.min(WHOLE, it.parts + parts), target, 0
    it.ends, it.due = it.sent + q.valid * 7 / 8, now + math.max(again, MIN_ERRAND_INTERVAL)
    return 1
  end

  -- The end of the current window, whose number of units the regions share.
  local function window_of(kind, list)
    if kind ~= 'w' then return 0 end
    return now >= list[14] and list[15] or list[14]
  end

  -- Decides a request about a limit that regions share: `q`uery, `e`rrand, `f`urther errand if no other is due later, or
  -- `d`eposit. `head` has the stock, the number of regions, for how long an allotment is valid, after which time nothing matters
  -- that was spent, the time constant of the demand, and whether an allotment is kept after its end.
  local function decide_shared_by_regions(key, allotment_key, action, head, kind, list)
    local given = numbers(head)
    local q = { stock = given[1], regions = given[2], valid = given[3], settle = given[4], over = given[5], keeps = given[6] }
    q.movable = list[places[kind][1]] - q.regions * q.stock
    local it = open_allotment(allotment_key, q)
    local reply
    if action == 'd' then
      local number, parts, target, again, window = unpack(given, 7)
      local done = window <= window_of(kind, list) and deposit(it, q, number, parts, target, again) or 0
      reply = { done, it.parts, 0, 0, 0, 0 }
    elseif action == 'f' and now < it.due then
      return { 0, it.parts, it.due - now, 0, 0, 0 }
    else
      note_region_demand(it, action == 'q' and list[places[kind][2] + 2] or 0, q)
      if q.movable > 0 then give_up_unused(it, key, kind, list, q) end
      if action == 'q' then
        reply = decide_regional(key, kind, list, it, q)
        reply[7] = q.movable > 0 and is_errand_due(it, q) and 1 or 0
        if reply[7] == 1 then it.due = now + ERRAND_TIME end
      else
        local lacked = it.lacked
        begin_errand(it)
        local in_use = q.movable > 0 and parts_in_use(key, kind, list, q) or 0
        reply = { 1, it.parts, it.number, reported_demand(it, q), in_use, window_of(kind, list), lacked }
      end
    end
    save_allotment(allotment_key, it, q)
    return reply
  end

  return decide_shared_by_regions
end
