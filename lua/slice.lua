--!include integers.lua
--!include clock.lua
--!include periods.lua
--!include history.lua
--!include histogram.lua
--!include estimate.lua
--!include counters.lua
--!include look.lua
--!include take.lua
-- slice: takes a small part of what is left of all counters of one subject, ahead of its requests, so
-- that a worker may admit some without asking (core/local_view.py). The slice is a reservation record
-- with many requests; draw.lua moves parts of it to records of their own, an undo (release.lua) gives
-- the rest back.
--
-- KEYS[1] config:{root}          hash, the limits, or the version of the view in force
-- KEYS[2] usage:output:{root}:   prefix of the output history
-- KEYS[3] resv:{root}:<id>       hash, the record of this slice
-- KEYS[4] pending:{root}         sorted set, open reservations by deadline
-- KEYS[5] usage:output:{root}:model:<word>:   prefix of the model's output history
-- KEYS[6..] the counters, up to the minute or period; of a simple root rate:rpm:{root}: and rate:tpm:...
--
-- ARGV[1] slice id                    ARGV[9] smallest slice that is worth it, in tokens
-- ARGV[2] version of the view, or empty: a simple root
-- ARGV[3] ms until it is overdue      ARGV[10] mean|quantile
-- ARGV[4] deadline of what is drawn   ARGV[11] quantile per mille, ARGV[12] margin in percent
-- ARGV[5] share of what is left, per mille
-- ARGV[6] most requests               ARGV[13] counters: JSON (see counters.lua): kinds m and q, units r
-- ARGV[7] most tokens                          and t, all of which refuse; of a simple root empty
-- ARGV[8] no more than so much used, per mille
-- ARGV[14] the same as the record keeps them
-- ARGV[15] input price, ARGV[16] output price (micro-USD a million)
--
-- Replies, nothing taken except by the first:
--   sliced, minute, requests, tokens, ms left of the minute, expected output (-1: no history),
--     {limit, left and reset ms of every counter}
--   none, full|small|stale|known

-- As in reserve_policies.lua.
local CHUNK = 64
local COUNTERS_AFTER = 5
-- So near to the minute's end it is not worth it.
local SHORTEST_MS = 100

local version, now = ARGV[2], now_ms()
local minute = math.floor(now / 60000)
local at = { now = now, minute = minute_name(minute), minute_left = 60000 - now % 60000,
  lease = tonumber(ARGV[3]), periods = {} }
if redis.call('EXISTS', KEYS[3]) == 1 then
  return { 'none', 'known' }
elseif at.minute_left < SHORTEST_MS then
  return { 'none', 'small' }
end

local cached = redis.call('HMGET', KEYS[1], 'status', 'version', 'rpm', 'tpm')
if cached[1] ~= '1' or (cached[2] or '') ~= version then
  return { 'none', 'stale' }
end
local counters, limits
if version == '' then
  local rpm, tpm = tonumber(cached[3] or ''), tonumber(cached[4] or '')
  if not rpm or not tpm then
    return { 'none', 'stale' }
  end
  counters = { { 'm', 'r', rpm, 2 }, { 'm', 't', tpm, 2 } }
  limits = cached[3] .. ' ' .. cached[4]
else
  counters, limits = cjson.decode(ARGV[13]), version
end

local lefts, states = look_at_all(counters, KEYS, COUNTERS_AFTER, at)
local requests, tokens = tonumber(ARGV[6]), tonumber(ARGV[7])
for i, counter in ipairs(counters) do
  local limit, left = counter[3], lefts[i]
  if left <= 0 or (limit - left) * 1000 > limit * tonumber(ARGV[8]) then
    return { 'none', 'full' }
  end
  local part = math.floor(left * tonumber(ARGV[5]) / 1000)
  if counter[2] == 'r' then
    requests = math.min(requests, part)
  else
    tokens = math.min(tokens, part)
  end
end
if requests < 2 or tokens < tonumber(ARGV[9]) then
  return { 'none', 'small' }
end

local expected
if version == '' then
  expected = mean_output(KEYS[2], minute)
else
  expected = expected_output(KEYS[5], KEYS[2], minute, ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12]))
end

local shown = {}
for i, counter in ipairs(counters) do
  local amount = counter[2] == 'r' and requests or tokens
  take(counter, amount, ARGV[1], at)
  shown[3 * i - 2], shown[3 * i - 1], shown[3 * i] = counter[3], lefts[i] - amount, states[2 * i]
end
-- Draws are refused after a time in which no record that was drawn can have been forgotten.
local drawable = now + tonumber(ARGV[4]) + RECORD_SLACK_MS
local fields = { 'state', 'RESERVED', 'rank', 0, 'minute', at.minute, 'input', 0,
  'reserved', digits(tokens), 'charged', digits(tokens), 'in', 0, 'requests', digits(requests),
  'at', digits(now), 'until', digits(drawable), 'lease', ARGV[4], 'limits', limits }
local function keep(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
if version == '' then
  keep('rpm', digits(counters[1][3]))
  keep('rpm_left', digits(shown[2]))
  keep('tpm', digits(counters[2][3]))
  keep('tpm_left', digits(shown[5]))
else
  if ARGV[15] ~= '0' or ARGV[16] ~= '0' then
    keep('prices', ARGV[15] .. ' ' .. ARGV[16])
  end
  local chunks = math.ceil(#ARGV[14] / CHUNK)
  keep('chunks', chunks)
  for i = 1, chunks do
    keep('b' .. i, ARGV[14]:sub((i - 1) * CHUNK + 1, i * CHUNK))
  end
end
redis.call('HSET', KEYS[3], unpack(fields))
redis.call('PEXPIRE', KEYS[3], digits(tonumber(ARGV[4]) + OPEN_SLACK_MS))
redis.call('ZADD', KEYS[4], digits(now + tonumber(ARGV[3])), ARGV[1])
keep_for(KEYS[4], tonumber(ARGV[4]) + OPEN_SLACK_MS)
return { 'sliced', at.minute, requests, tokens, at.minute_left, expected or -1, shown }
