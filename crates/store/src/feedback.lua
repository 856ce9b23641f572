-- Merges what instances know of a provider that a shared limit follows.
--   KEYS[1] hash with the state of each key: "share ceiling epoch paused_until"
--   ARGV[1] time in milliseconds for which a key is kept without change
--   ARGV[2..] for each key: "key share ceiling epoch age pause", where epoch is 0 for a decrease that the store does not
--   know yet, age the time since then (-1 without one), and pause the time until a pause ends
-- Returns for each key { key, share, ceiling, epoch, age, pause }. Times are in milliseconds, shares in millionths.
-- src/limiter/feedback/sharing.rs has the rules.

local MAX_KEYS = 4096

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local keep = tonumber(ARGV[1])

for index = 2, #ARGV do
  local key, share, ceiling, epoch, age, pause = ARGV[index]:match('^(%x+) (%d+) (%d+) (%d+) (%-?%d+) (%d+)$')
  share, ceiling, epoch, age, pause =
    tonumber(share), tonumber(ceiling), tonumber(epoch), tonumber(age), tonumber(pause)
  if epoch == 0 and age >= 0 then epoch = now - age end
  local paused_until = pause > 0 and now + pause or 0
  local text = redis.call('HGET', KEYS[1], key)
  if text then
    local s, c, e, p = text:match('^(%d+) (%d+) (%d+) (%d+)$')
    s, c, e, p = tonumber(s), tonumber(c), tonumber(e), tonumber(p)
    if epoch > e then
      share = math.min(share, s)
    elseif epoch < e or share <= s then
      share, ceiling, epoch = s, c, e
    end
    paused_until = math.max(paused_until, p)
  end
  if text or redis.call('HLEN', KEYS[1]) < MAX_KEYS then
    redis.call('HSET', KEYS[1], key, string.format('%d %d %.0f %.0f', share, ceiling, epoch, paused_until))
  end
end
redis.call('PEXPIRE', KEYS[1], keep)

local states, all = {}, redis.call('HGETALL', KEYS[1])
for index = 1, #all, 2 do
  local s, c, e, p = all[index + 1]:match('^(%d+) (%d+) (%d+) (%d+)$')
  s, c, e, p = tonumber(s), tonumber(c), tonumber(e), tonumber(p)
  if math.max(e, p) + keep < now then
    redis.call('HDEL', KEYS[1], all[index])
  else
    states[#states + 1] = { all[index], s, c, e, math.max(now - e, 0), math.max(p - now, 0) }
  end
end
return states
