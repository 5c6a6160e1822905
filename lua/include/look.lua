-- Looking at counters without taking; needs counters.lua and periods.lua.
-- ``at`` is the moment: now (ms), minute (its name), minute_left (ms), lease (ms).

-- Entries that leave a sliding window in one call at most; the rest waits for the next.
local MOST_EXPIRED = 1000
-- Entries that are looked at for a retry-after; beyond, it is when all of these are gone.
local MOST_WALKED = 256
local SLOT_RETRY_MS = 1000

local function expire_entries(counter, key, at)
  local gone = redis.call('ZRANGEBYSCORE', key, '-inf', digits(at.now - counter[5]),
    'LIMIT', 0, MOST_EXPIRED)
  if #gone == 0 then
    return
  end
  redis.call('ZREM', key, unpack(gone))
  if counter[2] ~= 'r' then
    local sum = 0
    for _, amount in ipairs(redis.call('HMGET', key .. ':n', unpack(gone))) do
      sum = sum + tonumber(amount or 0)
    end
    redis.call('HDEL', key .. ':n', unpack(gone))
    if sum > 0 then
      redis.call('HINCRBY', key .. ':n', 'sum', digits(-sum))
    end
  end
end

-- The name and end of a period; most counters of a request share theirs.
local function period_at(period, cycle_end, at)
  local known = at.periods[period]
  if not known then
    known = { period_name(period, at.now), cycle_end > 0 and cycle_end or period_end(period, at.now) }
    at.periods[period] = known
  end
  return known[1], known[2]
end

-- What is left (negative when passed) and how long until all is free again. What take.lua or
-- wait_ms will need is kept in the counter. A minute's counter has been read already.
local function look(counter, key, at)
  local kind, limit = counter[1], counter[3]
  if kind == 'm' then
    return limit - tonumber(counter.used or 0), at.minute_left
  end
  counter.key = key
  if kind == 'q' then
    local name
    name, counter.ends = period_at(counter[5], counter[6], at)
    counter.key = key .. name
    local sums = redis.call('HMGET', counter.key, 'used', 'held')
    counter.is_new = not sums[1] and not sums[2]
    return limit - tonumber(sums[1] or 0) - tonumber(sums[2] or 0), math.max(0, counter.ends - at.now)
  elseif kind == 'b' then
    local found = redis.call('HMGET', key, 'level', 'at')
    counter.level, counter.stamp = counter[5] * MICRO, at.now
    if found[1] and found[2] then
      local stamp = tonumber(found[2])
      counter.level = refilled(tonumber(found[1]), stamp, at.now, counter[5], counter[6])
      counter.stamp = math.max(stamp, at.now)
    end
    return math.floor(counter.level / MICRO),
      refill_ms(counter.level, counter[5] * MICRO, counter[6]) or at.minute_left
  elseif kind == 'w' then
    expire_entries(counter, key, at)
    local used = counter[2] == 'r' and redis.call('ZCARD', key) or redis.call('HGET', key .. ':n', 'sum')
    return limit - tonumber(used or 0), counter[5]
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(at.now))
  return limit - redis.call('ZCARD', key), at.lease
end

-- Looks at all: what is left of each, and the flat list of states for the reply.
local function look_at_all(counters, names, first, at)
  local minutes, minute_keys = {}, {}
  for i, counter in ipairs(counters) do
    if counter[1] == 'm' then
      counter.key = names[first + i] .. at.minute
      minutes[#minutes + 1] = counter
      minute_keys[#minute_keys + 1] = counter.key
    end
  end
  if #minutes > 0 then
    for i, used in ipairs(redis.call('MGET', unpack(minute_keys))) do
      minutes[i].used, minutes[i].is_new = used, not used
    end
  end
  local lefts, states = {}, {}
  for i, counter in ipairs(counters) do
    local left, reset = look(counter, names[first + i], at)
    lefts[i], states[2 * i - 1], states[2 * i] = left, left, reset
  end
  return lefts, states
end

-- When enough entries will have left a sliding window for ``missing`` more.
local function window_wait(counter, key, at, missing)
  local oldest = redis.call('ZRANGE', key, 0, math.min(missing, MOST_WALKED) - 1, 'WITHSCORES')
  if counter[2] ~= 'r' then
    oldest = redis.call('ZRANGE', key, 0, MOST_WALKED - 1, 'WITHSCORES')
  end
  local ids = {}
  for i = 1, #oldest, 2 do
    ids[#ids + 1] = oldest[i]
  end
  if #ids == 0 then
    return 0
  end
  local amounts = counter[2] ~= 'r' and redis.call('HMGET', key .. ':n', unpack(ids))
  local score
  for i = 1, #ids do
    score = tonumber(oldest[2 * i])
    missing = missing - (amounts and tonumber(amounts[i] or 0) or 1)
    if missing <= 0 then
      break
    end
  end
  return math.max(1, score + counter[5] - at.now)
end

-- When a refused amount will fit; -1: never.
local function wait_ms(counter, left, amount, at)
  local kind = counter[1]
  local size = kind == 'b' and counter[5] or counter[3]
  if counter[3] == 0 or amount > size then
    return -1
  elseif kind == 'm' then
    return at.minute_left
  elseif kind == 'q' then
    return math.max(0, counter.ends - at.now)
  elseif kind == 'b' then
    return refill_ms(counter.level, amount * MICRO, counter[6]) or -1
  elseif kind == 'w' then
    return window_wait(counter, counter.key, at, amount - left)
  end
  -- Streams end when they end: soon, but at the latest with the first lease.
  local first = redis.call('ZRANGE', counter.key, 0, 0, 'WITHSCORES')
  return math.max(1, math.min(SLOT_RETRY_MS, (tonumber(first[2] or 0)) - at.now))
end
