-- Counters of the shared store: each kind of limit. fast_path.lua precedes it, script.lua uses it.

local PRIORITIES = 4

-- Updates the demand of all instances by priority, in units per second. It decays exponentially with the time constant
-- `over`. `demand` has a number for each priority, followed by the number of instances that call.
local function note_demand(demand, elapsed, over, q)
  local fading = math.exp(-elapsed / over)
  for index = 1, PRIORITIES + 1 do demand[index] = demand[index] * fading end
  local mine = q.priority + 1
  demand[mine] = demand[mine] + q.demanded * q.weight * SECOND / over
  demand[PRIORITIES + 1] = demand[PRIORITIES + 1] + math.min(q.elapsed, over) / over
end

-- Returns the fraction of its wanted units that an instance gets, if all instances share `rate` units per second. `slack`
-- is the remaining fraction of the burst, from 0 to 1. At one quarter the shares add up to the rate, so that errors of the
-- estimate even out.
local function share(demand, rate, slack, q)
  local left = rate
  for priority = 1, q.priority do left = left - demand[priority] end
  left = math.max(left, rate / 100)
  local competing = demand[q.priority + 1]
  if competing <= left then return 1 end
  return math.min(1, (0.7 + 1.2 * slack) * left * q.weight / competing)
end

-- Returns the fraction of the period that a lease covers: if little is left, little is leased in advance.
local function ahead(slack) return math.min(1, 8 * slack) end

-- Returns the time for which `units` must last an instance that gets the fraction `part` of the units it wants in advance;
-- zero if it wants none in advance. Every grant counts against this time: otherwise an instance could exceed its share with
-- units for waiting requests.
local function paced(units, part, q)
  if q.wanted <= q.needed then return 0 end
  return math.min(SECOND, math.max(units, 1) * q.period / (q.wanted * part))
end

-- Returns the time at which an instance asks again while units that others hold may come back.
local function poll(q) return math.min(SECOND / 2, math.max(SECOND / 40, SECOND / 200 * q.instances)) end

-- Returns the wait and the spread of an instance for whose requests too little is left. It does not wait longer than until
-- units that others hold may be back, unless new ones come soon anyway.
local function wait_for_return(wait, spread, out_until, q)
  if q.instances > 1 and out_until > now and wait > 2 * SECOND then return poll(q), poll(q) / 4 end
  return wait, spread
end

-- Returns the units to grant of a stock of `room`, so that each instance has as much as it needs, and the last units go
-- one by one to requests that wait for them. Each lease is at most an instance's part of half of what is left.
local function from_stock(room, left, q)
  local most = math.min(left / 2, left * q.weight / (2 * math.min(q.instances, 32)))
  return math.min(room, math.max(q.needed, math.floor(math.min(q.wanted, most))))
end

-- Returns the units to grant if there are fewer than the waiting requests need: what is left, if it is enough for one.
local function last_units(room, q) return q.least <= room and room or 0 end

-- A bucket that drains at a constant rate: generic cell rate algorithm, token bucket and leaky bucket.
-- State: time, backlog, maximum validity of the leases that count, time at which the bucket is empty, interval, cap of
-- max-min fairness, demand. After that, slices of past time, the latest first: the start of the slice and its lowest
-- backlog. The last number is the units granted since the bucket was last unused, times 4096, and the milliseconds after
-- which all units that are out have been spent or returned. Scripts of earlier versions ignore it and leave it out.
local function bucket(key, list)
  local q = { interval = list[1], burst = list[2], valid = list[3], priority = list[4], fair = list[5], weight = list[6],
    needed = list[7], wanted = list[8], demanded = list[9], elapsed = list[10], returned = list[11], granted_at = list[12],
    owed = list[13], period = list[14], instances = list[15] or 1, least = list[16] or list[7],
    lost = list.lost or list.whole or list[2] }
  local full = q.burst * q.interval
  local rate = SECOND / q.interval
  local over = demand_time(q.interval)
  local s = load(key)
  local text = s
  s = s or { now, 0, 0, now, q.interval, rate, 0, 0, 0, 0, 0, now, 0 }
  local elapsed = math.max(0, now - s[1])
  local backlog = math.max(0, s[2] - elapsed)
  -- A lease that is spent late has the effect of a bucket that drains later. The effect ends when the bucket has been
  -- empty for the validity of a lease.
  local busy_until = s[4]
  local longest = now < busy_until + s[3] and s[3] or 0
  local begins, lows = {}, {}
  local packed = #s % 2 == 0 and s[#s] or UNKNOWN * 4096
  local used, out_until = math.floor(packed / 4096), s[1] + packed % 4096 * 1000
  for index = 1, math.floor((#s - 11) / 2) do begins[index], lows[index] = s[10 + 2 * index], s[11 + 2 * index] end
  if s[5] ~= q.interval then
    -- The limit has changed, or instances have different ones. Used units are kept, and earlier grants cannot be returned.
    local ratio = q.interval / s[5]
    backlog = backlog * ratio
    longest = math.min(longest * math.max(1, ratio), math.max(longest, full))
    begins, lows = { now }, { 0 }
    used = UNKNOWN
  end
  -- All of the limit may have been used, whatever is held back now.
  local lost = q.lost * q.interval
  if born > 0 and (not text or s[1] < born) and now - born < lost + math.min(0.6 * full, SECOND) then
    backlog, used = math.max(backlog, lost - (now - born)), UNKNOWN
    -- Leases that the store does not know any more may be spent late, too.
    longest = math.max(longest, math.min(0.6 * full, SECOND))
  end
  lows[1] = math.min(lows[1], backlog)
  -- All leases of before have no effect any more.
  if backlog == 0 and longest == 0 then used = 0 end
  local is_new = backlog == 0
  if is_new then
    -- All units granted so far have drained.
    begins, lows = { now }, { 0 }
  elseif now - begins[1] >= slice_length(math.max(q.valid, longest)) then
    table.insert(begins, 1, now)
    table.insert(lows, 1, backlog)
    begins[SLICES + 1], lows[SLICES + 1] = nil, nil
  end
  if q.returned > 0 then
    -- Lowers the backlog since the grant, as if the units had not been granted, but never below zero.
    local most, since = math.huge, nil
    for index = 1, #begins do
      most = math.min(most, lows[index])
      if q.granted_at >= begins[index] then
        since = index
        break
      end
    end
    if since then
      local units = q.returned * q.interval
      -- Units of that grant that are still out hold the backlog at what has not drained of them since.
      local back = math.min(units, backlog, math.max(most, units - (now - q.granted_at)))
      backlog = backlog - back
      -- These were not spent, however much of them has drained.
      used = math.max(0, used - q.returned)
      for index = 1, since do lows[index] = math.max(0, lows[index] - back) end
    end
  end
  local demand = { s[7], s[8], s[9], s[10], s[11] }
  note_demand(demand, elapsed, over, q)
  local owed = math.min(q.owed * q.interval, math.max(0, 2 * full - backlog))
  backlog, used = backlog + owed, used + owed / q.interval
  local tolerance = full - math.max(q.valid, longest)
  local slack = math.max(0, 1 - backlog / math.max(tolerance, q.interval))
  local cap = s[6]
  local part = 1
  if q.fair == 1 then
    cap = math.min(rate, math.max(rate / 10000, cap * math.exp(math.min(elapsed, over) / over * (2 * slack - 1))))
    if q.wanted > 0 then part = math.min(1, cap * q.weight * q.period / SECOND / q.wanted) end
  else
    -- Shares apply only if less than half of the burst is left.
    if slack < 0.5 then part = share(demand, rate, slack, q) end
  end
  -- Part of the burst is reserved for higher priorities while they have demand.
  local higher, reserved = 0, 0
  for priority = 1, q.priority do higher = higher + demand[priority] end
  if higher > rate / 100 then reserved = math.min(tolerance / 8 * q.priority, math.max(0, tolerance - q.interval)) end
  local room = math.max(0, math.floor((tolerance - reserved - backlog) / q.interval + 0.000001))
  -- A burst may be granted at once as a whole: until as much has been granted, no window can have more.
  room = math.max(room, math.floor(q.burst - used - reserved / q.interval + 0.000001))
  -- More is left than a second brings back.
  local has_stock = room * q.interval >= SECOND
  local granted, wait, spread, pause = 0, 0, 0, 0
  if q.needed > room then
    wait = math.ceil(backlog + q.needed * q.interval - (tolerance - reserved))
    spread = math.min(SECOND, demand[PRIORITIES + 1] * q.interval)
    if part < 1 and slack < 0.5 then wait = math.max(wait, paced(q.needed, part, q)) end
    wait, spread = wait_for_return(wait, spread, out_until, q)
    granted = last_units(room, q)
  elseif has_stock then
    granted = from_stock(room, room, q)
  else
    granted = math.min(room, math.max(q.needed, math.floor(q.wanted * part * ahead(slack))))
    -- No pause for grants to waiting requests while at least half of the burst is left.
    if part < 1 and (slack < 0.5 or granted > q.needed) then pause = paced(granted, part, q) end
  end
  backlog, used = backlog + granted * q.interval, used + granted
  out_until = returned_by(out_until, granted, q.valid)
  if is_new then lows[1] = backlog end
  if granted > 0 then longest = math.max(longest, q.valid) end
  if backlog > 0 then busy_until = now + backlog end
  local list_of = { now, backlog, longest, busy_until, q.interval, cap, demand[1], demand[2], demand[3], demand[4], demand[5] }
  for index = 1, #begins do
    list_of[10 + 2 * index], list_of[11 + 2 * index] = begins[index], lows[index]
  end
  list_of[#list_of + 1] = pack_use(used, out_until)
  save(key, list_of, backlog + longest + over)
  local remaining = math.max(0, math.floor((full - backlog) / q.interval + 0.000001))
  return { granted, q.valid, math.floor(wait), math.floor(spread), math.floor(pause), remaining }
end

-- A fixed window: `count` units between two boundaries by the clock. A lease ends with its window.
-- State: end of the window, used units, time, demand, time by which all units that are out have been spent or returned.
local function window(key, list)
  local q = { count = list[1], valid = list[2], priority = list[3], weight = list[4], needed = list[5], wanted = list[6],
    demanded = list[7], elapsed = list[8], returned = list[9], granted_at = list[10], owed = list[11], period = list[12], instances = list[16] or 1, least = list[17] or list[5] }
  local marks = { list[13], list[14], list[15] }
  if now < marks[1] or now >= marks[3] then return { -1, 0, 0, 0, 0, 0 } end
  local start, stop = marks[1], marks[2]
  if now >= marks[2] then start, stop = marks[2], marks[3] end
  local s = load(key)
  local text = s
  s = s or { stop, 0, now, 0, 0, 0, 0, 0, 0 }
  local used, out_until = s[2], s[9] or 0
  if s[1] ~= stop then used = math.max(0, used - (list.whole or q.count)) end
  if born >= start and (not text or s[3] < born) then used = math.max(used, list.lost or list.whole or q.count) end
  local over = math.min(60 * SECOND, math.max(SECOND, (stop - start) / 4))
  local demand = { s[4], s[5], s[6], s[7], s[8] }
  note_demand(demand, math.max(0, now - s[3]), over, q)
  if q.granted_at >= start then used = math.max(0, used - q.returned) end
  used = used + math.min(q.owed, math.max(0, 2 * q.count - used))
  local room = math.max(0, q.count - used)
  local granted, wait, spread, pause = 0, 0, 0, 0
  if q.needed > room then
    wait, spread = wait_for_return(stop - now, math.min(5000, (stop - now) / 10), out_until, q)
    granted = last_units(room, q)
  else
    -- Units are reserved for the demand of higher priorities in the coming period.
    local higher = 0
    for priority = 1, q.priority do higher = higher + demand[priority] end
    granted = from_stock(room, math.max(room - higher * q.period / SECOND, room / 100), q)
    if room == 0 then pause = math.min(poll(q), stop - now) end
  end
  used = used + granted
  out_until = returned_by(out_until, granted, math.min(q.valid, stop - now))
  local ends = stop - now
  if used > q.count then ends = ends + (stop - start) end
  save(key, { stop, used, now, demand[1], demand[2], demand[3], demand[4], demand[5], out_until }, ends)
  return { granted, math.min(q.valid, stop - now), math.ceil(wait), math.floor(spread), math.floor(pause),
    math.max(0, q.count - used) }
end

-- A sliding window or log: `count` units in any span of `length`, which has `parts` sub-windows. A sub-window that is only
-- partly in the span counts fully. A lease ends with its sub-window.
-- State: time, demand, then pairs of sub-window and count. The pair with the number -1 has the time by which all units that
-- are out have been spent or returned.
local function sliding(key, list)
  local q = { count = list[1], length = list[2], parts = list[3], valid = list[4], priority = list[5], weight = list[6],
    needed = list[7], wanted = list[8], demanded = list[9], elapsed = list[10], returned = list[11], granted_at = list[12],
    owed = list[13], period = list[14], instances = list[15] or 1, least = list[16] or list[7] }
  local part_length = q.length / q.parts
  local current = math.floor(now / part_length)
  local oldest = current - q.parts
  local s = load(key)
  local text = s
  s = s or { now, 0, 0, 0, 0, 0 }
  local counts, used, out_until = {}, 0, 0
  for index = 7, #s, 2 do
    if s[index] == -1 then
      out_until = s[index + 1]
    elseif s[index] >= oldest then
      counts[#counts + 1] = { s[index], s[index + 1] }
      used = used + s[index + 1]
    end
  end
  if born > 0 and (not text or s[1] < born) then
    local lost = math.floor(born / part_length)
    if lost >= oldest then
      local whole = list.lost or list.whole or q.count
      table.insert(counts, 1, { lost, math.max(0, whole - used) })
      used = math.max(used, whole)
    end
  end
  local demand = { s[2], s[3], s[4], s[5], s[6] }
  local over = math.min(60 * SECOND, math.max(SECOND, q.length / 4))
  note_demand(demand, math.max(0, now - s[1]), over, q)
  local of_claim = math.floor(q.granted_at / part_length)
  local returned = q.returned
  for index = #counts, 1, -1 do
    local count = counts[index]
    if count[1] == of_claim then
      local back = math.min(count[2], returned)
      count[2], used, returned = count[2] - back, used - back, returned - back
    end
  end
  local owed = math.min(q.owed, math.max(0, 2 * q.count - used))
  local room = math.max(0, q.count - used - owed)
  local granted, wait, spread, pause = 0, 0, 0, 0
  if q.needed > room then
    local freed = 0
    wait = q.length
    for _, count in ipairs(counts) do
      freed = freed + count[2]
      if room + freed >= q.needed then
        wait = (count[1] + q.parts + 1) * part_length - now
        break
      end
    end
    spread = math.min(SECOND, demand[PRIORITIES + 1] * q.length / q.count)
    wait, spread = wait_for_return(wait, spread, out_until, q)
    granted = last_units(room, q)
  elseif room > 0 and room * q.length / q.count >= SECOND then
    granted = from_stock(room, room, q)
  else
    local part = share(demand, q.count * SECOND / q.length, room / q.count, q)
    granted = math.min(room, math.max(q.needed, math.floor(q.wanted * part)))
    if part < 1 and granted > q.needed then pause = 0.9 * q.period end
    if room == 0 then pause = math.max(pause, poll(q)) end
  end
  local ends = (current + 1) * part_length - now
  out_until = returned_by(out_until, granted, math.min(q.valid, ends))
  if granted + owed > 0 then
    local last = counts[#counts]
    if last and last[1] == current then last[2] = last[2] + granted + owed
    else counts[#counts + 1] = { current, granted + owed } end
  end
  local list_of = { now, demand[1], demand[2], demand[3], demand[4], demand[5] }
  for _, count in ipairs(counts) do
    if count[2] > 0 then
      list_of[#list_of + 1] = count[1]
      list_of[#list_of + 1] = count[2]
    end
  end
  list_of[#list_of + 1] = -1
  list_of[#list_of + 1] = out_until
  save(key, list_of, q.length + part_length + over)
  return { granted, math.floor(math.min(q.valid, ends)), math.ceil(wait), math.floor(spread), math.floor(pause),
    math.max(0, room - granted) }
end

-- A refill bucket: gets `count` tokens at every interval of `every`. A lease ends with the next refill.
-- State: time of the last refill, missing tokens, time, demand, time by which all units that are out have been spent or
-- returned.
local function refill(key, list)
  local q = { count = list[1], every = list[2], burst = list[3], valid = list[4], priority = list[5], weight = list[6],
    needed = list[7], wanted = list[8], demanded = list[9], elapsed = list[10], returned = list[11], granted_at = list[12],
    owed = list[13], period = list[14], instances = list[15] or 1, least = list[16] or list[7] }
  local s = load(key)
  local text = s
  s = s or { now, 0, now, 0, 0, 0, 0, 0, 0 }
  local since, missing, out_until = s[1], s[2], s[9] or 0
  if born > 0 and (not text or s[3] < born) then since, missing = born, list.lost or list.whole or q.burst end
  local refills = math.max(0, math.floor((now - since) / q.every))
  missing = math.max(0, missing - refills * q.count)
  since = since + refills * q.every
  if missing == 0 then since = now end
  local demand = { s[4], s[5], s[6], s[7], s[8] }
  local over = math.min(60 * SECOND, math.max(SECOND, q.every))
  note_demand(demand, math.max(0, now - s[3]), over, q)
  if q.granted_at >= since then missing = math.max(0, missing - q.returned) end
  missing = missing + math.min(q.owed, math.max(0, 2 * q.burst - missing))
  -- While parts are held back, refills are fractions.
  local room = math.max(0, math.floor(q.burst - missing + 0.000001))
  local granted, wait, spread, pause = 0, 0, 0, 0
  if q.needed > room then
    wait = since + math.ceil((missing + q.needed - q.burst) / q.count) * q.every - now
    wait, spread = wait_for_return(wait, math.min(5000, q.every / 10), out_until, q)
    granted = last_units(room, q)
  elseif room > 0 and room * q.every / q.count >= SECOND then
    granted = from_stock(room, room, q)
  else
    local part = share(demand, q.count * SECOND / q.every, room / q.burst, q)
    granted = math.min(room, math.max(q.needed, math.floor(q.wanted * part)))
    if part < 1 and granted > q.needed then pause = math.min(0.9 * q.period, since + q.every - now) end
    if room == 0 then pause = math.max(pause, math.min(poll(q), since + q.every - now)) end
  end
  missing = missing + granted
  out_until = returned_by(out_until, granted, math.min(q.valid, since + q.every - now))
  save(key, { since, missing, now, demand[1], demand[2], demand[3], demand[4], demand[5], out_until },
    math.ceil(missing / q.count) * q.every + over)
  return { granted, math.floor(math.min(q.valid, since + q.every - now)), math.ceil(wait), math.floor(spread),
    math.floor(pause), math.max(0, math.floor(q.burst - missing + 0.000001)) }
end

-- A concurrency limit. An instance holds permits until they expire; it renews them as long as it runs. `held` is the
-- number of permits that it may use before the reply arrives, or if none arrives. These stay assigned to it. A request that
-- arrives after a later one of the same instance changes nothing.
-- State: for each instance its number, its permits, their expiry, and the sending time of its last request by its own clock.
local function permits(key, list)
  local q = { count = list[1], valid = list[2], instance = list[3], used = list[4], wanted = list[5], held = list[6], sent = list[7] }
  local s = load(key)
  local text = s
  s = s or {}
  local kept, mine, others, last = {}, 0, 0, now + q.valid
  for index = 1, #s, 4 do
    local is_valid = s[index + 2] > now
    if s[index] == q.instance then
      if s[index + 3] > q.sent then return { 0, 0, 0, 0, 0, 0 } end
      if is_valid then mine = s[index + 1] end
    elseif is_valid then
      for offset = 0, 3 do kept[#kept + 1] = s[index + offset] end
      others, last = others + s[index + 1], math.max(last, s[index + 2])
    end
  end
  -- After a loss of data, permits that the store no longer knows may be in use until they expire.
  if born > 0 and now < born + q.valid and not text then others = math.max(others, q.count - q.used) end
  local free = math.max(0, q.count - others)
  -- In advance, an instance gets at most half of the free permits, so that some remain for others.
  local ahead = math.max(q.used, math.min(q.wanted, q.used + math.floor(math.max(0, free - q.used) / 2 + 0.5)))
  local granted = math.min(free, ahead)
  local out = math.max(granted, math.min(mine, q.held))
  if out > 0 then
    for _, number in ipairs({ q.instance, out, now + q.valid, q.sent }) do kept[#kept + 1] = number end
  end
  if #kept > 0 then save(key, kept, last - now) else redis.call('DEL', key) end
  local wait = granted < q.wanted and q.valid / 40 or 0
  return { granted, q.valid, math.floor(wait), math.floor(wait), 0, math.max(0, free - out) }
end

-- A ban. Each ban is twice as long as the previous one, up to `most`. The previous one counts for `most` after its end.
-- State: the end, and the number of times that the duration was doubled. The reply has this number in place of the granted
-- units, and the remaining time in place of the wait.
local function ban(key, list)
  local q = { first = list[1], most = list[2], began = list[3] }
  local s = load(key)
  local text = s
  s = s or { 0, 0 }
  local ends, doubled = s[1], s[2]
  if q.began >= 0 and ends <= now then
    if text and now <= ends + q.most then doubled = math.min(doubled + 1, 63) else doubled = 0 end
    ends = now - q.began + math.min(q.most, q.first * 2 ^ doubled)
    save(key, { ends, doubled }, math.max(0, ends - now) + q.most)
  end
  return { doubled, 0, math.max(0, math.ceil(ends - now)), 0, 0, 0 }
end

local kinds = { b = bucket, w = window, s = sliding, r = refill, p = permits, x = ban }

-- Places of numbers in a request: of the limit's units, of the needed units, and of the number of instances. The wanted units
-- follow the needed ones, and those given back and owed are four and six places behind.
local places = { b = { 2, 7, 15 }, w = { 1, 5, 16 }, s = { 1, 7, 15 }, r = { 3, 7, 15 } }

-- Minimum time after which instances ask again while parts are held back, which may end at any time.
local HELD_POLL = SECOND / 4

-- Returns the time after which an instance asks again while it may get more at any time.
local function polls_after(kind, list)
  return math.max(HELD_POLL, poll({ instances = list[places[kind][3]] or 1 }))
end

-- Decides a request with `left` units of its limit, at the fraction `rate` of its rate. Returns nothing if no unit is left. After
-- a loss of data, `lost` units count as used; all of the limit without it.
local function decide_part(key, kind, list, left, rate, lost)
  local units, needed = unpack(places[kind])
  if kind == 'b' then list[1] = list[1] / rate end
  if kind == 'r' then list[1] = list[1] * rate end
  list.whole, list.lost, list[units] = list[units], lost, left
  if left >= 1 then return kinds[kind](key, list) end
  -- What is given back and owed counts all the same.
  if list[needed + 4] > 0 or list[needed + 6] > 0 then
    list[needed], list[needed + 1], list[units] = 0, 0, list.whole
    kinds[kind](key, list)
  end
end
