-- What all code about counters of policies agrees upon. A counter is described by a list (from
-- stores/bucket_codec.py):
--   1 kind     m minute, w sliding window, b token bucket, s slots, q quota
--   2 unit     r requests, i input, o output, t total, c cost, s slot
--   3 limit
--   4 voice    2 refuses, 1 only says that it would, 0 neither
--   5, 6       w: its length in ms; b: capacity, refill a minute; q: period, end of a cycle in ms
-- A sliding window that counts requests has one entry a request; any other has amounts beside its
-- entries, in the hash amounts:... of the same name (one field an entry, and their sum).

local MINUTE_TTL_S = 120
local SLACK_MS = 60000
-- A record outlives its end by so much. One that is open outlives its deadline by a day: a reaper that
-- was away must still find what it holds.
local RECORD_SLACK_MS = 900000
local OPEN_SLACK_MS = 86400000
-- Quotas outlive their period, for late settlements and for people who look back. A contract may be
-- prolonged late, and who has spent it stays away meanwhile: its sums must still be there.
local QUOTA_KEPT_MS = 604800000
local CYCLE_KEPT_MS = 7776000000
-- The longest deadline and what an open record outlives it by.
local EMPTY_QUOTA_KEPT_MS = 86400000 + OPEN_SLACK_MS + SLACK_MS
-- Token buckets keep millionths, so that short times refill them too.
local MICRO = 1000000

-- Makes a key live so long at least (ms).
local function keep_for(key, ttl)
  -- GT refuses a key without TTL, so then look.
  if redis.call('PEXPIRE', key, digits(ttl), 'GT') == 0 and redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, digits(ttl))
  end
end

-- The level of a token bucket at a time: refilled since its stamp, never above its capacity. A clock
-- that went back refills nothing.
local function refilled(level, stamp, now, capacity, per_minute)
  local gained = math.floor(math.max(0, now - stamp) * per_minute * MICRO / 60000)
  return math.min(capacity * MICRO, level + gained)
end

-- How long a token bucket takes from a level to another (millionths); nil if for ever.
local function refill_ms(from, to, per_minute)
  if from >= to then
    return 0
  end
  return per_minute > 0 and math.ceil((to - from) * 60000 / (per_minute * MICRO)) or nil
end

-- Lets a token bucket live until it is full (one that never fills is forgotten in the end), and for
-- ``open`` ms at least: as long as records of what was taken from it. An answer may take longer than
-- the bucket needs to fill, and a correction makes no key anew, so without the bucket its debt would
-- be forgotten. Rebuilding a lost bucket from its record would take no memory (about 150 bytes a
-- subject for deadline and slack), but it could not tell "full" from evicted or flushed.
local function keep_bucket(key, level, capacity, per_minute, open)
  local full = refill_ms(level, capacity * MICRO, per_minute) or 86400000
  keep_for(key, math.max(math.min(full, 31536000000) + SLACK_MS, open))
end

-- The hash of a sliding window's amounts, as in stores/keys.py. No value of a scope can name another
-- counter's: kinds of keys differ in how they begin.
local function amounts_of(window)
  return 'amounts:' .. window:sub(#'window:' + 1)
end
