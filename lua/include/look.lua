-- Looking at counters without taking; needs counters.lua and periods.lua.
-- ``at`` is the moment: now (ms), minute (its name), minute_left (ms), lease (ms).

-- Entries that leave a sliding window in one step, and steps of one call; entries of which one is made
-- anew. Every entry leaves once, so a call costs O(log n) on average, however full the window is. These
-- are for many at once, after a pause: measured 2.5 us an entry, so 20 ms at most.
local MOST_EXPIRED = 1000
local MOST_STEPS = 8
local MOST_REBUILT = 2000
-- Entries that are looked at for a retry-after; beyond, it is when all of these are gone.
local MOST_WALKED = 256
local SLOT_RETRY_MS = 1000

-- A sliding window has what is younger than this score.
local function window_start(counter, at)
  return digits(at.now - counter[5])
end

local function drop_entries(counter, key, gone)
  redis.call('ZREM', key, unpack(gone))
  if counter[2] ~= 'r' then
    local sum = 0
    for _, amount in ipairs(redis.call('HMGET', amounts_of(key), unpack(gone))) do
      sum = sum + tonumber(amount or 0)
    end
    redis.call('HDEL', amounts_of(key), unpack(gone))
    if sum > 0 then
      redis.call('HINCRBY', amounts_of(key), 'sum', digits(-sum))
    end
  end
end

-- Makes a window anew from the few entries that are still inside, with scores in ``inside``.
local function rebuild_window(counter, key, inside)
  local scored, ids = {}, {}
  for i = 1, #inside, 2 do
    ids[#ids + 1] = inside[i]
    scored[i], scored[i + 1] = inside[i + 1], inside[i]
  end
  local amounts = #ids > 0 and redis.call('HMGET', amounts_of(key), unpack(ids)) or {}
  -- What is unlinked is freed by a thread of its own, however much it is.
  redis.call('UNLINK', key, amounts_of(key))
  if #ids == 0 then
    return
  end
  local fields, sum = {}, 0
  for i, amount in ipairs(amounts) do
    fields[2 * i - 1], fields[2 * i] = ids[i], amount or 0
    sum = sum + tonumber(amount or 0)
  end
  redis.call('ZADD', key, unpack(scored))
  redis.call('HSET', amounts_of(key), 'sum', digits(sum), unpack(fields))
  redis.call('PEXPIRE', key, digits(counter[5] + SLACK_MS))
  redis.call('PEXPIRE', amounts_of(key), digits(counter[5] + SLACK_MS))
end

-- Takes out what has left a sliding window. Requests may stay for later calls, because they are counted
-- from the window's start. Amounts have a sum, so all must go now: in steps, or, where little is
-- inside, at once. Only where more than both bounds is due and as much still inside, the rest is
-- counted until the next calls: a busy window may then refuse, with a retry at once; an idle one never.
local function expire_entries(counter, key, at)
  local start = window_start(counter, at)
  for _ = 1, MOST_STEPS do
    local gone = redis.call('ZRANGEBYSCORE', key, '-inf', start, 'LIMIT', 0, MOST_EXPIRED)
    if #gone == MOST_EXPIRED and counter[2] ~= 'r'
      and redis.call('ZCOUNT', key, '(' .. start, '+inf') <= MOST_REBUILT then
      return rebuild_window(counter, key,
        redis.call('ZRANGEBYSCORE', key, '(' .. start, '+inf', 'WITHSCORES'))
    end
    if #gone > 0 then
      drop_entries(counter, key, gone)
    end
    if #gone < MOST_EXPIRED or counter[2] == 'r' then
      return
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

-- Until when the sums of a period are kept (ms).
local function quota_kept_until(counter, at)
  local kept = counter[6] > 0 and CYCLE_KEPT_MS or QUOTA_KEPT_MS
  return math.max(counter.ends, at.now) + kept
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
    -- An empty one may be about to be forgotten (correct.lua).
    counter.is_new = tonumber(sums[1] or 0) == 0 and tonumber(sums[2] or 0) == 0
    if counter[6] > 0 and not counter.is_new then
      -- The end of a cycle may have been moved; also when this request is refused. One command, which
      -- does nothing while the end stays: to remember the end would cost memory and save no time.
      redis.call('PEXPIREAT', counter.key, digits(quota_kept_until(counter, at)), 'GT')
    end
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
    local used = counter[2] == 'r'
      and redis.call('ZCOUNT', key, '(' .. window_start(counter, at), '+inf')
      or redis.call('HGET', amounts_of(key), 'sum')
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
  local oldest
  if counter[2] == 'r' then
    oldest = redis.call('ZRANGEBYSCORE', key, '(' .. window_start(counter, at), '+inf', 'WITHSCORES',
      'LIMIT', 0, digits(math.min(missing, MOST_WALKED)))
  else
    oldest = redis.call('ZRANGE', key, 0, MOST_WALKED - 1, 'WITHSCORES')
  end
  local ids = {}
  for i = 1, #oldest, 2 do
    ids[#ids + 1] = oldest[i]
  end
  if #ids == 0 then
    return 0
  end
  local amounts = counter[2] ~= 'r' and redis.call('HMGET', amounts_of(key), unpack(ids))
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
