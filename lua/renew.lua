--!include integers.lua
--!include clock.lua
--!include periods.lua
--!include counters.lua
--!include correct.lua
--!include idempotency.lua
-- renew: keeps a long request open: its deadline and its leases of concurrency.
--
-- KEYS[1] resv:{root}:<id>       hash, the record; it names its counters
-- KEYS[2] pending:{root}         sorted set, open reservations by deadline
-- KEYS[3] rate:tpm:{root}:       prefix, never a key itself: so a Redis Cluster that moves the slot says
--                                TRYAGAIN before the script has begun, and not in the middle of it
--
-- ARGV[1] reservation id         ARGV[2] new deadline in ms; an older, later one stays
--
-- Reply: 1 and its other roots (with commas) when it is open, 0 when it has ended or is not known.

local id = ARGV[1]
local record = redis.call('HMGET', KEYS[1], 'rank', 'chunks', 'minute', 'at', 'also', 'idem')
if record[1] ~= '0' then
  return { 0, '' }
end
local now = now_ms()
local ends = math.max(now + tonumber(ARGV[2]), tonumber(redis.call('ZSCORE', KEYS[2], id) or 0))
local ttl = ends - now + OPEN_SLACK_MS

local function prolong(key, slack)
  redis.call('ZADD', key, digits(ends), id)
  keep_for(key, ends - now + slack)
end

prolong(KEYS[2], OPEN_SLACK_MS)
redis.call('PEXPIRE', KEYS[1], digits(ttl))
if record[6] then
  prolong_attempt(KEYS[1], record[6], ends - now)
end
if record[2] then
  each_counter(KEYS[1], tonumber(record[2]), record[3], tonumber(record[4]), function(kind, _, key)
    if kind == 's' then
      -- Also when the lease was over: the stream is there, so it counts.
      prolong(key, SLACK_MS)
    elseif kind == 'b' or kind == 'q' then
      -- What it took may be corrected as long as it is open.
      keep_for(key, ttl)
    end
  end)
end
return { 1, record[5] or '' }
