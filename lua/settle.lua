--!include integers.lua
--!include clock.lua
--!include periods.lua
--!include cost.lua
--!include counters.lua
--!include correct.lua
--!include histogram.lua
--!include ending.lua
--!include event.lua
--!include review.lua
-- settle: charges what a request really used instead of what was reserved.
--
-- KEYS[1] rate:tpm:{root}:       prefix; the minute comes from the record (see reserve.lua)
-- KEYS[2] resv:{root}:<id>       hash, the record
-- KEYS[3] pending:{root}         sorted set, open reservations
-- KEYS[4] rate:rpm:{root}:       prefix of the request windows
-- KEYS[5] usage:output:{root}:   prefix of the output history
-- KEYS[6] usage:output:{root}:model:<word>:     the same of the model, for a root with policies
-- KEYS[7] review:{root}          sorted set, what waits for people's word (see review.lua)
-- KEYS[8] events:{root}          stream, where usage events are wanted (see event.lua)
-- A policy root's record names its own counters; all have the root's hash tag.
--
-- ARGV[1] reservation id         ARGV[5] state
-- ARGV[2] rank of the knowledge  ARGV[6] outcome
-- ARGV[3] input tokens           ARGV[7] source
-- ARGV[4] output tokens          ARGV[8] 1: write the history
-- ARGV[9] cost in micro-USD, or empty: by the prices of the admission
-- ARGV[10] what was used by kind, in words for people; empty: nothing beyond the totals
--
-- Reply: applied|improved|classified|noop, reserved, charged before, charged, outcome, other roots that
-- hold some of it too (with commas); or missing.
-- A charge may lift the window above its limit: what was used is charged, never refused.

local HISTORY_TTL_S = 900

local output = tonumber(ARGV[4])

-- Adds the answer to a minute; true for the first one there.
local function write_history(prefix, minute, has_histogram)
  local bucket = prefix .. minute
  local count = redis.call('HINCRBY', bucket, 'count', 1)
  redis.call('HINCRBY', bucket, 'output_tokens', digits(output))
  if has_histogram then
    redis.call('HINCRBY', bucket, 'h' .. histogram_bin(output), 1)
  end
  if count == 1 then
    redis.call('EXPIRE', bucket, HISTORY_TTL_S)
  end
  return count == 1
end

local reply, may_write, has_policies = finish(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), output,
  tonumber(ARGV[9]), ARGV[5], ARGV[6], ARGV[7], 1)
if not reply then
  return { 'missing' }
end
if (ARGV[10] or '') ~= '' and (reply[1] == 'applied' or reply[1] == 'improved') then
  redis.call('HSET', KEYS[2], 'parts', ARGV[10])
end
review(KEYS[7], KEYS[2], ARGV[1], reply[1], ARGV[5], ARGV[7])
if KEYS[8] then
  write_event(KEYS[8], KEYS[2], ARGV[1], reply[1], tonumber(ARGV[3]), output, ARGV[10] or '', false)
end
if may_write and ARGV[8] == '1' then
  -- The history is of answers, so it belongs to the minute in which the answer ended.
  local minute = minute_name(math.floor(now_ms() / 60000))
  write_history(KEYS[5], minute, has_policies)
  if has_policies and write_history(KEYS[6], minute, true) then
    -- So reserve_policies.lua knows without a look at ten minutes which models it has answers of.
    redis.call('SET', KEYS[6] .. 'last', minute, 'EX', HISTORY_TTL_S)
  end
  redis.call('HSET', KEYS[2], 'history', 1)
end
return reply
