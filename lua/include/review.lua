-- Reservations that wait for people's word; needs integers.lua and clock.lua.
--
-- A reservation that the reaper leaves RECONCILING is charged by estimate, and it and its record are
-- kept for people. Better knowledge from anywhere takes it out again.

local REVIEW_TTL_MS = 604800000
-- In one root. With more the oldest are out of review: what they were charged stands.
local MOST_REVIEWS = 10000
local FORGOTTEN_TTL_MS = 900000

-- Drops from review:{root} what has been in it for too long; its record is gone as well.
local function drop_old_reviews(key, now)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(now - REVIEW_TTL_MS))
end

local function enter_review(key, record, id)
  local now = now_ms()
  drop_old_reviews(key, now)
  redis.call('ZADD', key, digits(now), id)
  redis.call('PEXPIRE', key, digits(REVIEW_TTL_MS))
  redis.call('PEXPIRE', record, digits(REVIEW_TTL_MS))
  local surplus = redis.call('ZCARD', key) - MOST_REVIEWS
  if surplus > 0 then
    local prefix = record:sub(1, #record - #id)
    local oldest = redis.call('ZPOPMIN', key, surplus)
    for i = 1, #oldest, 2 do
      if redis.call('EXISTS', prefix .. oldest[i]) == 1 then
        redis.call('HSET', prefix .. oldest[i], 'state', 'EXPIRED')
        redis.call('PEXPIRE', prefix .. oldest[i], digits(FORGOTTEN_TTL_MS))
      end
    end
  end
end

-- What an end means for review:{root}; ``status`` is what finish (ending.lua) did.
local function review(key, record, id, status, state, source)
  if status == 'applied' and source == 'reaper' and state == 'RECONCILING' then
    enter_review(key, record, id)
  elseif status == 'improved' then
    redis.call('ZREM', key, id)
    if source == 'operator' then
      -- So that whoever decides again learns what was decided.
      redis.call('PEXPIRE', record, digits(REVIEW_TTL_MS))
    end
  end
end
