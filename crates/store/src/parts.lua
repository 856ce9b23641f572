-- Parts of the limits: what each instance may spend while it does not reach the store. They are held back for as long.
-- Follows state.lua, precedes script.lua. docs/design/053-partitions.md has the protocol and its proof.
--
-- State of a group: the time before which nothing is held back, the time of the last renewal, and for each instance its
-- number, its part, the time of its last renewal, for how long a renewal is valid, after which time the instance counts as
-- absent, the part that it may have spent before it returned, the time of its return, its demand, and when its last renewal
-- was sent, by its own clock.

-- The number that stands for all of a limit.
local WHOLE = 1048576
-- Part that is divided equally, so that an instance without demand has some when it loses the store.
local EQUAL = 1 / 16
-- Maximum time for which what was lost may matter: twice the maximum validity.
local MAX_LOSS = 2 * 86400 * 1000000
local HEADER, HOLDER = '<dd', '<' .. ('d'):rep(9)

local function open_parts(key, now, born)
  -- Loaded when a request needs them: most limits have no parts.
  local quiet_until, holders, longest
  local known_held = {}

  local function load_header()
    local text, saved = redis.call('GETRANGE', key, 0, 15), 0
    quiet_until = 0
    if #text == 16 then quiet_until, saved = struct.unpack(HEADER, text) end
    if saved < born then quiet_until = 0 end
  end

  local function load_holders()
    if holders then return end
    local text = redis.call('GET', key)
    holders, longest = {}, 0
    for offset = 17, text and #text or 0, 72 do
      local id, part, renewed, valid, absent, earlier, ended, demand, sent = struct.unpack(HOLDER, text, offset)
      -- A store that has lost data may have an old state of instances that were not heard of since.
      if renewed >= born and now < renewed + 2 * valid then
        if now >= ended + valid then earlier = 0 end
        longest = math.max(longest, valid)
        holders[#holders + 1] = { id = id, part = part, renewed = renewed, valid = valid, absent = absent,
          earlier = earlier, ended = ended, demand = demand, sent = sent }
      end
    end
  end

  -- Whether parts may be in use that the store does not know any more.
  local function has_lost(period) return born > 0 and now < born + (longest > 0 and period or MAX_LOSS) end

  -- Whether a holder matters to others: it is present, or has a part.
  local function matters(it) return it.part + it.earlier > 0 or now < it.renewed + it.absent end

  local function save_holders()
    local calm, list = math.huge, { '' }
    longest = 0
    for _, it in ipairs(holders) do
      if matters(it) then
        longest = math.max(longest, it.valid)
        if it.earlier > 0 then calm = 0 end
        if it.part > 0 then calm = math.min(calm, it.renewed + it.absent) end
        list[#list + 1] = struct.pack(HOLDER, it.id, it.part, it.renewed, it.valid, it.absent, it.earlier, it.ended, it.demand,
          it.sent)
      end
    end
    if #list == 1 then
      quiet_until = 0
      return redis.call('DEL', key)
    end
    quiet_until = has_lost(2 * longest) and 0 or calm
    list[1] = struct.pack(HEADER, quiet_until, now)
    redis.call('SET', key, table.concat(list), 'PX', math.ceil(2 * longest / 1000) + 1000)
  end

  local function sum_held(settle, units)
    load_holders()
    local held, known = 0, 0
    for _, it in ipairs(holders) do
      known = known + it.part + it.earlier
      -- Nobody spends less than a unit.
      if settle <= it.valid then
        local is_absent = now >= it.renewed + it.absent and now < it.renewed + it.valid + settle
        if is_absent and it.part * units >= WHOLE then held = held + it.part end
        if now < it.ended + settle and it.earlier * units >= WHOLE then held = held + it.earlier end
      end
    end
    if has_lost(longest + settle) and (longest == 0 or settle <= longest) then held = held + math.max(0, WHOLE - known) end
    return math.min(held, WHOLE)
  end

  -- Returns how much of WHOLE is held back of a limit of `units` for which nothing matters that was spent `settle` ago.
  local function held_back(settle, units)
    if not quiet_until then load_header() end
    if now < quiet_until then return 0 end
    local name = settle .. ' ' .. units
    known_held[name] = known_held[name] or sum_held(settle, units)
    return known_held[name]
  end

  -- Renews the part of an instance; returns it, or -1 if nothing was renewed. The request has its number, its demand, for
  -- how long the renewal is valid (zero to give the part up), after which time it counts as absent, the part that it may
  -- spend until the reply arrives, whether it may have spent it already, the time of the store until which the request is
  -- valid, and when it was sent by its own clock.
  local function renew(id, demand, valid, absent, claimed, has_spent, deadline, sent)
    if now > deadline then return -1 end
    load_holders()
    local mine, others, demand_of_all, present, kept = nil, 0, demand, 1, {}
    for _, it in ipairs(holders) do
      if it.id == id then
        mine = it
      else
        kept[#kept + 1] = it
        others = others + it.part + it.earlier
        if now < it.renewed + it.absent then demand_of_all, present = demand_of_all + it.demand, present + 1 end
      end
    end
    if mine and mine.sent > sent then return -1 end
    if not mine and valid == 0 then return 0 end
    longest = math.max(longest, valid)
    local is_lossy, free = has_lost(2 * longest), math.max(0, WHOLE - others)
    if not mine then mine = { id = id, part = is_lossy and math.min(claimed, free) or 0, valid = valid, earlier = 0, ended = 0 } end
    if has_spent == 1 then
      mine.earlier, mine.ended, mine.part = mine.earlier + mine.part, now, 0
    end
    local by_demand = demand_of_all > 0 and demand / demand_of_all or 1 / present
    local wanted = WHOLE * (EQUAL / present + (1 - EQUAL) * by_demand)
    -- What was given up of a part after a loss would be held back with all that is not known.
    local most = is_lossy and mine.part or math.min(wanted, math.max(0, free - mine.earlier))
    local granted = valid > 0 and math.floor(most) or 0
    mine.part = math.max(granted, valid > 0 and math.min(mine.part, claimed) or 0)
    mine.renewed, mine.absent, mine.demand, mine.sent = now, valid > 0 and absent or 0, demand, sent
    -- What was spent before the return matters for as long as was valid then.
    if valid > 0 then mine.valid = math.max(valid, mine.earlier > 0 and mine.valid or 0) end
    kept[#kept + 1] = mine
    holders = kept
    save_holders()
    return granted
  end

  return held_back, renew
end
