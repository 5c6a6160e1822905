--!include integers.lua
--!include clock.lua
--!include cost.lua
--!include counters.lua
-- draw: gives requests that a worker admitted from a slice (slice.lua) records of their own, and moves to
-- them what they reserved. Counters stay as they are. It may be called again, by anyone who has the
-- handle: what has a record is left alone, also if that is only the mark of its release.
--
-- KEYS[1] config:{root}          hash, the limits, or the version of the view in force
-- KEYS[2] resv:{root}:<slice id> hash, the record of the slice
-- KEYS[3] pending:{root}         sorted set, open reservations by deadline
-- KEYS[4..] resv:{root}:<id>     hashes, the records of the requests
--
-- ARGV[1] slice id
-- ARGV[2..] nine for each request: id, input tokens, reserved tokens, wire format, model, request id,
--           owner, request hash, who asks where the record is to keep it
--
-- Reply: how many records were made, or -1: the slice is not known (any more); and 1 when the limits are
-- still those by which the slice was taken.
-- From a slice that has been given back nothing is left, so what is drawn late holds nothing: its
-- settlement then charges all of it.

local EACH = 9

local now = now_ms()
local slice = redis.call('HMGET', KEYS[2], 'until', 'charged', 'requests', 'minute', 'at', 'lease',
  'limits', 'chunks', 'prices', 'rpm', 'rpm_left', 'tpm', 'tpm_left')
if not slice[1] or now > tonumber(slice[1]) then
  return { -1, 0 }
end
local tokens, requests = tonumber(slice[2]), tonumber(slice[3])
local lease, chunks = tonumber(slice[6]), tonumber(slice[8])
-- In the minute of the slice, where it was taken.
local minute_end = (math.floor(tonumber(slice[5]) / 60000) + 1) * 60000
local at = math.min(now, minute_end - 1)
local input_price, output_price = (slice[9] or '0 0'):match('(%d+) (%d+)')

local shared = { 'state', 'RESERVED', 'rank', 0, 'minute', slice[4], 'at', digits(at), 'from', ARGV[1] }
local function share(name, value)
  shared[#shared + 1] = name
  shared[#shared + 1] = value
end
if chunks then
  share('chunks', chunks)
  for i = 1, chunks do
    share('b' .. i, redis.call('HGET', KEYS[2], 'b' .. i))
  end
  if slice[9] then
    share('prices', slice[9])
  end
else
  share('rpm', slice[10])
  share('rpm_left', slice[11])
  share('tpm', slice[12])
  share('tpm_left', slice[13])
end

local made = 0
for i = 4, #KEYS do
  local first = (i - 4) * EACH + 2
  if redis.call('EXISTS', KEYS[i]) == 0 then
    local id, input, reserved = ARGV[first], tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
    local taken, counted = math.min(reserved, tokens), math.min(1, requests)
    tokens, requests, made = tokens - taken, requests - counted, made + 1
    redis.call('HSET', KEYS[2], 'charged', digits(tokens), 'reserved', digits(tokens),
      'requests', digits(requests))
    redis.call('HSET', KEYS[i], 'input', digits(input), 'reserved', digits(reserved),
      'charged', digits(taken), 'wire_format', ARGV[first + 3], 'model', ARGV[first + 4],
      'request_id', ARGV[first + 5], unpack(shared))
    if chunks then
      redis.call('HSET', KEYS[i], 'in', digits(math.min(input, taken)))
    end
    if slice[9] then
      redis.call('HSET', KEYS[i], 'cost',
        digits(cost_of(input, reserved - input, tonumber(input_price), tonumber(output_price))))
    end
    if counted == 0 then
      redis.call('HSET', KEYS[i], 'requests', 0)
    end
    if ARGV[first + 6] ~= '' or ARGV[first + 7] ~= '' then
      redis.call('HSET', KEYS[i], 'owner', ARGV[first + 6], 'hash', ARGV[first + 7])
    end
    if ARGV[first + 8] ~= '' then
      redis.call('HSET', KEYS[i], 'who', ARGV[first + 8])
    end
    redis.call('PEXPIRE', KEYS[i], digits(lease + OPEN_SLACK_MS))
    redis.call('ZADD', KEYS[3], digits(now + lease), id)
  end
end
if made > 0 then
  keep_for(KEYS[3], lease + OPEN_SLACK_MS)
end

local cached = redis.call('HMGET', KEYS[1], 'status', 'version', 'rpm', 'tpm')
local limits = cached[2] or ((cached[3] or '') .. ' ' .. (cached[4] or ''))
return { made, cached[1] == '1' and limits == slice[7] and 1 or 0 }
