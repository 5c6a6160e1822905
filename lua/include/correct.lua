-- Moving counters of policies from one charge to another; needs integers.lua, clock.lua, periods.lua
-- and counters.lua.
--
-- A record keeps its counters as "<kind><unit><period>|<key>;..." in chunks b1, b2 ... Of a key it has
-- what follows {root}, or, where it does not begin as usual for its kind, all with {} for {root}.
-- What was taken follows from the unit, and minute and period from the record.

-- As in stores/keys.py.
local BEGINNINGS = { m = 'rate:', w = 'window:', b = 'bucket:', s = 'slots:', q = 'quota:' }

-- Signs that stand for words in a record; as in stores/record_words.py.
local WORDS = {
  ['/'] = '.rpm.', ['('] = '.input_tpm.', [')'] = '.output_tpm.',
  ['+'] = '.total_tpm.', ['='] = '.concurrent.', ['<'] = '.tokens_per_day.',
  ['>'] = '.tokens_per_month.', ['['] = '.cost_micros_per_day.', [']'] = '.cost_micros_per_month.',
  ['@'] = '.cost_micros_per_cycle.', ['#'] = 'organization:', ['!'] = 'tenant:',
  ['$'] = 'department:', ['&'] = 'project:', ['*'] = 'application:',
  ['?'] = 'agent:', ['~'] = 'user:', ['^'] = 'api_key:',
  [','] = 'model:', ["'"] = 'provider:', ['%'] = 'service:',
}

-- Moves one counter by ``change`` = after - before, in its unit. Negative and zero changes are
-- ordinary. A counter that is gone is not made again, and none loses its TTL. Gone is, by design, a
-- minute two minutes after it began, and an entry that has left its sliding window: then nobody is
-- limited by them any more. Quotas and token buckets outlive the records that took from them.
local function correct_one(kind, unit, key, move, period)
  local change = move.after[unit] - move.before[unit]
  if kind == 's' then
    redis.call('ZREM', key, move.id)
  elseif kind == 'q' then
    local sums = redis.call('HMGET', key, 'used', 'held')
    if not sums[1] and not sums[2] then
      return
    end
    local used, held = tonumber(sums[1] or 0), tonumber(sums[2] or 0)
    if move.is_first then
      -- Less is held than this only after the counter was lost and made anew.
      held = math.max(0, held - move.before[unit])
      used = used + move.after[unit]
    else
      used = math.max(0, used + change)
    end
    redis.call('HSET', key, 'used', digits(used), 'held', digits(held))
    if period:sub(1, 1) ~= 'c' then
      -- Of names that clients make up, and of which nothing was used, little stays behind for long.
      -- As long as any record may be there that took nothing so far.
      if used == 0 and held == 0 then
        redis.call('PEXPIRE', key, digits(EMPTY_QUOTA_KEPT_MS), 'LT')
      elseif tonumber(sums[1] or 0) == 0 and tonumber(sums[2] or 0) == 0 then
        redis.call('PEXPIREAT', key, digits(period_end(period, move.at) + QUOTA_KEPT_MS), 'GT')
      end
    end
  elseif change == 0 and (kind ~= 'b' or unit == 'r') then
    return
  elseif kind == 'm' then
    if redis.call('EXISTS', key) == 1 then
      local left = redis.call('INCRBY', key, digits(change))
      if left < 0 then
        redis.call('INCRBY', key, digits(-left))
      end
    end
  elseif kind == 'w' and unit == 'r' then
    if change < 0 then
      redis.call('ZREM', key, move.id)
    end
  elseif kind == 'w' then
    local amounts = amounts_of(key)
    local amount = redis.call('HGET', amounts, move.id)
    if amount then
      redis.call('HSET', amounts, move.id, digits(move.after[unit]))
      redis.call('HINCRBY', amounts, 'sum', digits(move.after[unit] - tonumber(amount)))
    end
  elseif kind == 'b' then
    local found = redis.call('HMGET', key, 'level', 'at', 'capacity', 'refill')
    if found[1] then
      local stamp, capacity, refill = tonumber(found[2]), tonumber(found[3]), tonumber(found[4])
      local level = refilled(tonumber(found[1]), stamp, move.now, capacity, refill)
      -- What comes back does not lift it above its capacity; what is owed may take it below zero.
      level = math.min(capacity * MICRO, level - change * MICRO)
      redis.call('HSET', key, 'level', digits(level), 'at', digits(math.max(stamp, move.now)))
      -- Better knowledge may correct this end as long as there is a record.
      keep_bucket(key, level, capacity, refill, RECORD_SLACK_MS)
    end
  end
end

-- Calls ``visit(kind, unit, key, period)`` for every counter of a record; ``record_key`` has the hash tag.
local function each_counter(record_key, chunks, minute, admitted_at, visit)
  if chunks == 0 then
    return
  end
  local names = {}
  for i = 1, chunks do
    names[i] = 'b' .. i
  end
  local text = table.concat(redis.call('HMGET', record_key, unpack(names)))
  text = text:gsub('[^%w._:|;{}-]', WORDS)
  local tag = record_key:match('{[^}]*}')
  for head, tail in text:gmatch('([^|;]+)|([^;]+)') do
    local kind, unit, period = head:sub(1, 1), head:sub(2, 2), head:sub(3)
    local before, after = tail:match('^(.*){}(.*)$')
    local key = before and before .. tag .. after or BEGINNINGS[kind] .. tag .. tail
    if kind == 'm' then
      key = key .. minute
    elseif kind == 'q' then
      key = key .. period_name(period, admitted_at)
    end
    visit(kind, unit, key, period)
  end
end
