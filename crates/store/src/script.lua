-- Script of the shared store: counts shared limits and grants leases. state.lua, fast_path.lua, parts.lua,
-- counters.lua and regions.lua precede it.
--
-- The keys of a call belong to one group, which is in one slot of a Redis Cluster:
--   KEYS[1]            generation of the group
--   KEYS[2]            parts of the limits that instances may spend without the store
--   KEYS[3..]          counters and bans, each once, then the allotments of counters that regions share: the key of the counter and `:region`
--   ARGV[1]            generation that the instance knows, or "-"
--   ARGV[2]            run_id of the server, which the instance has read from INFO
--   ARGV[3]            ID of a new generation, used if the group has none
--   ARGV[4]            renewal of the instance's part: its numbers, separated by spaces, or "-"
--   ARGV[5..]          a request for each counter: its kind and numbers, separated by spaces. If parts of the limit are held
--                      back, the kind is in upper case, and the time after which nothing matters that was spent is first
-- Returns the generation, the time of the store in microseconds, the renewed part or -1, and for each request
--   { granted, valid for, wait, spread, pause, remaining }, with times in microseconds. For a limit that regions share, a
--   seventh number is 1 if the instance is to go on an errand to the global store.
--
-- Times are in microseconds: a double holds them exactly until the year 2255. docs/design/023-shared-limits.md has the
-- protocol and its proof. tests/fleet/model.rs is a model of this script in Rust, and a test compares the two.

local held_back, renew = open_parts(KEYS[2], now, born)

-- Decides a request of whose limit parts may be held back. The first number is the time after which nothing matters that was
-- spent under the limit.
local function decide_rest(key, kind, list)
  local settle = table.remove(list, 1)
  local units = places[kind][1]
  local held = held_back(settle, list[units])
  if held == 0 then return kinds[kind](key, list) end
  local left = 1 - held / WHOLE
  local asks_after = polls_after(kind, list)
  local reply = decide_part(key, kind, list, math.floor(list[units] * left), math.max(left, 1 / WHOLE)) or { 0, 0, asks_after, asks_after / 4, 0, 0 }
  for index = 3, 5 do reply[index] = math.min(reply[index], asks_after) end
  return reply
end

local decide_regional

local function decide(key, question)
  local action, head, rest = question:match('^@(%a) ([^;]*);(.*)$')
  if action then
    decide_regional = decide_regional or open_regions()
    return decide_regional(key, key .. ':region', action, head, rest:sub(1, 1), numbers(rest:sub(3)))
  end
  local kind, list = question:sub(1, 1), numbers(question:sub(3))
  local counted_as = kind:lower()
  if kind ~= counted_as then return decide_rest(key, counted_as, list) end
  return kinds[kind](key, list)
end

if ARGV[4] ~= '-' then replies[3] = renew(unpack(numbers(ARGV[4]))) end
for index = 3, #ARGV - 2 do
  replies[index + 1] = replies[index + 1] or decide(KEYS[index], ARGV[index + 2])
end
return replies
