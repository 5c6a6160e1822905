--!include clock.lua
--!include integers.lua
-- overdue: open reservations whose deadline has passed, longest overdue first.
--
-- KEYS[1] pending:{root}         sorted set, open reservations by deadline
-- KEYS[2] resv:{root}:           prefix of the records
-- ARGV[1] how many at most
--
-- Reply: a list of {id, input, reserved, overdue ms, 1 for a slice (slice.lua)}. Entries without an open
-- record are dropped from the set: there is nothing left to resolve.

local now = now_ms()
local found = {}
repeat
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', digits(now), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
  local stale = 0
  for i = 1, #due, 2 do
    local record = redis.call('HMGET', KEYS[2] .. due[i], 'rank', 'input', 'reserved', 'until')
    if record[1] == '0' and tonumber(record[2] or '') and tonumber(record[3] or '') then
      found[#found + 1] = { due[i], tonumber(record[2]), tonumber(record[3]), now - tonumber(due[i + 1]),
        record[4] and 1 or 0 }
    else
      redis.call('ZREM', KEYS[1], due[i])
      stale = stale + 1
    end
  end
-- A batch that was all stale says nothing about what comes after it.
until #found > 0 or stale == 0
return found
