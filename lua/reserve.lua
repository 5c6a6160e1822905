--!include integers.lua
--!include clock.lua
--!include history.lua
--!include idempotency.lua
--!include refusals.lua
-- reserve: checks requests and tokens of the current minute and takes both, or neither. This is for
-- simple roots, which have a row of limits; see reserve_policies.lua for the others.
--
-- KEYS[1] config:{root}          hash, the cached limits
-- KEYS[2] rate:rpm:{root}:       prefix of the request windows
-- KEYS[3] rate:tpm:{root}:       prefix of the token windows
-- KEYS[4] usage:output:{root}:   prefix of the output history
-- KEYS[5] resv:{root}:<id>       hash, the record of this reservation
-- KEYS[6] pending:{root}         sorted set, open reservations by deadline
-- KEYS[7] refusals:{root}        list, the last refusals
-- KEYS[8] idem:{root}:<digest>   hash, where the client gave an idempotency key
-- Windows are named by their UTC minute, which only Redis' own clock may tell; so their prefixes are
-- declared and the minute is appended here. The hash tag is in the prefix: same slot.
--
-- ARGV[1] reservation id         ARGV[6] wire format
-- ARGV[2] input tokens           ARGV[7] model
-- ARGV[3] output cap, or -1      ARGV[8] request id
-- ARGV[4] default output         ARGV[9] status, ARGV[10] rpm, ARGV[11] tpm: limits that could not
-- ARGV[5] deadline in ms         be cached; an empty status means "read KEYS[1]"
-- ARGV[12] 1: strict, 2: no history    ARGV[14] owner, ARGV[15] request hash
-- ARGV[13] platform's output cap, or -1
-- ARGV[16] life of the idempotency key in ms, or empty: none     ARGV[17] its digest
-- ARGV[18] who asks, for the note of a refusal     ARGV[19] 1: the record keeps it, for usage events
--
-- Replies, nothing taken except by the first:
--   admitted, minute, input, reserved, rpm, left, tpm, left, reset ms
--   rejected, rpm|tpm, asked tokens, rpm, left, tpm, left, reset ms, retry ms (-1: never fits)
--   refused, unknown|disabled
--   missing                      the limits are not cached
--   released                     this id was released, maybe before it was reserved
--   stale, version, view         the root has policies now
--   conflict, owner|request      the id belongs to somebody else, or to another request
--   conflict, in_flight|key_reused   the idempotency key's attempt is open, or was of another request
-- The same id again gets its first answer.

local WINDOW_TTL_S = 120
-- As in counters.lua.
local OPEN_SLACK_MS = 86400000

local now = now_ms()

local known = redis.call('HMGET', KEYS[5], 'state', 'minute', 'input', 'reserved', 'at',
  'rpm', 'rpm_left', 'tpm', 'tpm_left', 'owner', 'hash')
if known[1] then
  if known[2] ~= '' then
    if (known[10] or '') ~= ARGV[14] then
      return { 'conflict', 'owner' }
    elseif (known[11] or '') ~= ARGV[15] or not known[6] then
      return { 'conflict', 'request' }
    end
  end
  if known[1] == 'RELEASED' then
    return { 'released' }
  end
  local window_end = (math.floor(tonumber(known[5]) / 60000) + 1) * 60000
  return { 'admitted', known[2], tonumber(known[3]), tonumber(known[4]), tonumber(known[6]),
    tonumber(known[7]), tonumber(known[8]), tonumber(known[9]), math.max(0, window_end - now) }
end

local status, rpm, tpm = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
if status == '' then
  local cached = redis.call('HMGET', KEYS[1], 'status', 'rpm', 'tpm', 'version', 'view')
  local version, view = cached[4] or '', cached[5] or ''
  if version ~= '' and view ~= '' then
    return { 'stale', version, view }
  elseif version ~= '' or view ~= '' then
    return { 'missing' }  -- spoilt, see lease.lua
  end
  status, rpm, tpm = cached[1], tonumber(cached[2] or ''), tonumber(cached[3] or '')
end
if status == 'unknown' then
  return { 'refused', 'unknown' }
end
if not status or not rpm or not tpm then
  return { 'missing' }
end
if status ~= '1' then
  return { 'refused', 'disabled' }
end

local before
if ARGV[16] ~= '' then
  local conflict
  conflict, before = earlier_attempt(KEYS[8], ARGV[15], KEYS[5], ARGV[1])
  if conflict then
    return { 'conflict', conflict }
  end
end

local minute = math.floor(now / 60000)
local name = minute_name(minute)
local input, cap = tonumber(ARGV[2]), tonumber(ARGV[3])

local platform_cap = tonumber(ARGV[13])
if cap < 0 or (platform_cap >= 0 and platform_cap < cap) then
  cap = platform_cap
end
local output
if ARGV[12] == '1' and cap >= 0 then
  output = cap
else
  output = ARGV[12] == '0' and mean_output(KEYS[4], minute) or tonumber(ARGV[4])
  if cap >= 0 then
    output = math.min(output, cap)
  end
  -- A guess may not refuse what could fit into an empty window; input and strict caps are no guess.
  output = math.min(output, math.max(0, tpm - input))
end
local reserve = input + output

local requests_key, tokens_key = KEYS[2] .. name, KEYS[3] .. name
local requests, tokens = redis.call('GET', requests_key), redis.call('GET', tokens_key)
local used_requests, used_tokens = tonumber(requests or 0), tonumber(tokens or 0)
local reset = 60000 - now % 60000

-- What can never fit is said first: to come back for a request that is too large would be in vain.
local refused_by
local never = rpm == 0 or tpm == 0 or reserve > tpm
if never then
  refused_by = rpm == 0 and 'rpm' or 'tpm'
elseif used_requests + 1 > rpm then
  refused_by = 'rpm'
elseif used_tokens + reserve > tpm then
  refused_by = 'tpm'
end
if refused_by then
  local by = {}
  if used_requests + 1 > rpm then
    by[#by + 1] = { 'rpm', rpm == 0 and -1 or reset, rpm, rpm - used_requests }
  end
  if tpm == 0 or used_tokens + reserve > tpm then
    by[#by + 1] = { 'tpm', (tpm == 0 or reserve > tpm) and -1 or reset, tpm, tpm - used_tokens }
  end
  keep_refusal(KEYS[7], now, { id = ARGV[1], request_id = ARGV[8], model = ARGV[7], who = ARGV[18] },
    input, reserve, 0, by)
  return { 'rejected', refused_by, reserve, rpm, math.max(0, rpm - used_requests),
    tpm, math.max(0, tpm - used_tokens), reset, never and -1 or reset }
end

redis.call('INCR', requests_key)
if not requests then
  redis.call('EXPIRE', requests_key, WINDOW_TTL_S)
end
redis.call('INCRBY', tokens_key, digits(reserve))
if not tokens then
  redis.call('EXPIRE', tokens_key, WINDOW_TTL_S)
end
local rpm_left, tpm_left = rpm - used_requests - 1, tpm - used_tokens - reserve
local deadline = tonumber(ARGV[5])
redis.call('HSET', KEYS[5], 'state', 'RESERVED', 'rank', 0, 'minute', name, 'input', digits(input),
  'reserved', digits(reserve), 'charged', digits(reserve), 'at', digits(now),
  'rpm', digits(rpm), 'rpm_left', digits(rpm_left), 'tpm', digits(tpm), 'tpm_left', digits(tpm_left),
  'wire_format', ARGV[6], 'model', ARGV[7], 'request_id', ARGV[8])
if ARGV[14] ~= '' or ARGV[15] ~= '' then
  redis.call('HSET', KEYS[5], 'owner', ARGV[14], 'hash', ARGV[15])
end
if ARGV[19] == '1' and ARGV[18] ~= '' then
  redis.call('HSET', KEYS[5], 'who', ARGV[18])
end
if ARGV[16] ~= '' then
  redis.call('HSET', KEYS[5], 'idem', ARGV[17])
  if before then
    redis.call('HSET', KEYS[5], 'before', before)
  end
  remember_attempt(KEYS[8], ARGV[15], ARGV[1], ARGV[16])
end
redis.call('PEXPIRE', KEYS[5], digits(deadline + OPEN_SLACK_MS))
redis.call('ZADD', KEYS[6], digits(now + deadline), ARGV[1])
-- The index lives as long as the record that lives longest.
if redis.call('PTTL', KEYS[6]) < deadline + OPEN_SLACK_MS then
  redis.call('PEXPIRE', KEYS[6], digits(deadline + OPEN_SLACK_MS))
end
return { 'admitted', name, input, reserve, rpm, rpm_left, tpm, tpm_left, reset }
