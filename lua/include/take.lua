-- Taking from counters that look.lua has looked at; needs counters.lua.

-- Returns how long until all is free again where taking has changed that.
local function take(counter, amount, id, at)
  local kind, key = counter[1], counter.key
  if kind == 'm' then
    redis.call('INCRBY', key, digits(amount))
    if counter.is_new then
      redis.call('EXPIRE', key, MINUTE_TTL_S)
    end
  elseif kind == 'q' then
    redis.call('HINCRBY', key, 'held', digits(amount))
    if counter.is_new then
      redis.call('PEXPIREAT', key, digits(quota_kept_until(counter, at)))
    end
  elseif kind == 'b' then
    -- A counter that does not refuse may be emptied below zero: it has to refill from there.
    local level = counter.level - amount * MICRO
    if counter[4] < 2 then
      -- One that refused would not have let so much through: once it does, it owes a filling at most.
      level = math.max(level, math.min(counter.level, -counter[5] * MICRO))
    end
    redis.call('HSET', key, 'level', digits(level), 'at', digits(counter.stamp),
      'capacity', digits(counter[5]), 'refill', digits(counter[6]))
    keep_bucket(key, level, counter[5], counter[6], at.lease + OPEN_SLACK_MS)
    return refill_ms(level, counter[5] * MICRO, counter[6])
  elseif kind == 'w' then
    local ttl = digits(counter[5] + SLACK_MS)
    redis.call('ZADD', key, digits(at.now), id)
    redis.call('PEXPIRE', key, ttl)
    if counter[2] ~= 'r' then
      local amounts = amounts_of(key)
      redis.call('HSET', amounts, id, digits(amount))
      redis.call('HINCRBY', amounts, 'sum', digits(amount))
      redis.call('PEXPIRE', amounts, ttl)
    end
  else
    redis.call('ZADD', key, digits(at.now + at.lease), id)
    keep_for(key, at.lease + SLACK_MS)
  end
end
