--!include integers.lua
--!include clock.lua
--!include periods.lua
--!include cost.lua
--!include history.lua
--!include histogram.lua
--!include estimate.lua
--!include counters.lua
--!include look.lua
--!include take.lua
--!include idempotency.lua
--!include refusals.lua
-- reserve_policies: reserve.lua for a root with policies: checks all counters, takes from all or none.
--
-- KEYS[1] config:{root}          hash, the version of the view in force and the view
-- KEYS[2] usage:output:{root}:   prefix of the output history
-- KEYS[3] resv:{root}:<id>       hash, the record of this reservation
-- KEYS[4] pending:{root}         sorted set, open reservations by deadline
-- KEYS[5] usage:output:{root}:model:<word>:   prefix of the model's output history
-- KEYS[6] refusals:{root}        list, the last refusals
-- KEYS[7..] the counters, up to the minute or period where they have one (see reserve.lua)
-- and last   idem:{root}:<digest>, where the client gave an idempotency key
--
-- ARGV[1] reservation id         ARGV[11] margin in percent
-- ARGV[2] version of the view    ARGV[12] platform's output cap, or -1
-- ARGV[3] 1: do not compare it   ARGV[13] input price, ARGV[14] output price (micro-USD a million)
-- ARGV[4] owner                  ARGV[15] deadline in ms
-- ARGV[5] request hash           ARGV[16] wire format
-- ARGV[6] input tokens           ARGV[17] model
-- ARGV[7] output cap, or -1      ARGV[18] request id
-- ARGV[8] default output         ARGV[19] counters: JSON, one list each (see counters.lua)
-- ARGV[9] mean|quantile|strict, or given: the default output, which another root has estimated
-- ARGV[10] quantile per mille    ARGV[20] the same as the record keeps them (see correct.lua)
-- ARGV[21] other roots that this reservation will ask, with commas
-- ARGV[22] life of the idempotency key in ms, or empty: none     ARGV[23] its digest
-- ARGV[24] who asks, for the note of a refusal     ARGV[25] 1: the record keeps it, for usage events
--
-- Replies, nothing taken except by the first; states are remaining and reset ms of every counter:
--   taken, minute, input, reserved, cost, {states}, {shadow refusals}
--   exceeded, tokens, cost, {states}, {refusals: index, retry ms (-1: never)}, {shadow refusals}
--   stale, version, view         the view in force is another one
--   refused, unknown|disabled    missing      released     as of reserve.lua
--   conflict, owner|request      the id belongs to somebody else, or to another request
--   conflict, in_flight|key_reused   the idempotency key's attempt is open, or was of another request
-- The same id again gets its first decision, with the states of now.

-- A hash whose values are longer than this needs twice the memory.
local CHUNK = 64
-- KEYS before those of the counters.
local COUNTERS_AFTER = 6

local id, record = ARGV[1], KEYS[3]
local now = now_ms()
local minute = math.floor(now / 60000)
local deadline = tonumber(ARGV[15])
local at = { now = now, minute = minute_name(minute), minute_left = 60000 - now % 60000,
  lease = deadline, periods = {} }
local counters = cjson.decode(ARGV[19])
local input_price, output_price = tonumber(ARGV[13]), tonumber(ARGV[14])

local known = redis.call('HMGET', record, 'state', 'minute', 'input', 'reserved', 'owner', 'hash',
  'shadow')
if known[1] then
  if known[2] ~= '' then
    if (known[5] or '') ~= ARGV[4] then
      return { 'conflict', 'owner' }
    elseif (known[6] or '') ~= ARGV[5] then
      return { 'conflict', 'request' }
    end
  end
  if known[1] == 'RELEASED' then
    return { 'released' }
  end
  local _, states = look_at_all(counters, KEYS, COUNTERS_AFTER, at)
  local shadow = {}
  for index in (known[7] or ''):gmatch('%d+') do
    shadow[#shadow + 1] = tonumber(index)
  end
  local taken_input, reserved = tonumber(known[3]), tonumber(known[4])
  return { 'taken', known[2], taken_input, reserved,
    cost_of(taken_input, reserved - taken_input, input_price, output_price), states, shadow }
end

if ARGV[3] ~= '1' then
  local cached = redis.call('HMGET', KEYS[1], 'status', 'version')
  if cached[1] == 'unknown' then
    return { 'refused', 'unknown' }
  elseif not cached[1] then
    return { 'missing' }
  elseif (cached[2] or '') ~= ARGV[2] then
    local version, view = cached[2] or '', redis.call('HGET', KEYS[1], 'view') or ''
    if (version ~= '') ~= (view ~= '') then
      return { 'missing' }  -- spoilt, see lease.lua
    end
    return { 'stale', version, view }
  elseif cached[1] ~= '1' then
    return { 'refused', 'disabled' }
  end
end

local before
if ARGV[22] ~= '' then
  local conflict
  conflict, before = earlier_attempt(KEYS[#KEYS], ARGV[5], record, id)
  if conflict then
    return { 'conflict', conflict }
  end
end

local input, cap, platform_cap = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[12])
if cap < 0 or (platform_cap >= 0 and platform_cap < cap) then
  cap = platform_cap
end
local output
local strict = ARGV[9] == 'strict' and cap >= 0
if strict then
  output = cap
else
  output = (ARGV[9] == 'mean' or ARGV[9] == 'quantile')
    and expected_output(KEYS[5], KEYS[2], minute, ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]))
    or tonumber(ARGV[8])
  if cap >= 0 then
    output = math.min(output, cap)
  end
  -- A guess may not refuse what could fit into empty counters; input and strict caps are no guess.
  for _, counter in ipairs(counters) do
    if counter[4] == 2 then
      local unit, size = counter[2], counter[1] == 'b' and counter[5] or counter[3]
      if unit == 't' then
        output = math.min(output, size - input)
      elseif unit == 'o' then
        output = math.min(output, size)
      elseif unit == 'c' and output_price > 0 then
        output = math.min(output, tokens_for(size - cost_of(input, 0, input_price, 0), output_price))
      end
    end
  end
  output = math.max(0, output)
end
local cost = cost_of(input, output, input_price, output_price)
local amounts = { r = 1, s = 1, i = input, o = output, t = input + output, c = cost }

local lefts, states = look_at_all(counters, KEYS, COUNTERS_AFTER, at)
local refusals, shadow = {}, {}
for i, counter in ipairs(counters) do
  local amount = amounts[counter[2]]
  if counter[4] > 0 and (counter[3] == 0 or amount > lefts[i]) then
    if counter[4] == 2 then
      -- Estimates were clipped, so what does not fit an empty counter now never will.
      refusals[#refusals + 1] = i
      refusals[#refusals + 1] = wait_ms(counter, lefts[i], amount, at)
    else
      shadow[#shadow + 1] = i
    end
  end
end
if #refusals > 0 then
  local names, by = {}, {}
  for name in ARGV[20]:gmatch('[^;]+') do
    names[#names + 1] = name
  end
  for i = 1, #refusals, 2 do
    local index = refusals[i]
    by[#by + 1] = { names[index], refusals[i + 1], counters[index][3], lefts[index],
      counters[index][1] == 'b' and counters[index][5] or nil }
  end
  keep_refusal(KEYS[6], now, { id = id, request_id = ARGV[18], model = ARGV[17], who = ARGV[24] },
    input, input + output, cost, by)
  return { 'exceeded', input + output, cost, states, refusals, shadow }
end

for i, counter in ipairs(counters) do
  local amount = amounts[counter[2]]
  states[2 * i - 1] = lefts[i] - amount
  states[2 * i] = take(counter, amount, id, at) or states[2 * i]
end
local fields = { 'state', 'RESERVED', 'rank', 0, 'minute', at.minute, 'input', digits(input),
  'reserved', digits(input + output), 'charged', digits(input + output), 'in', digits(input),
  'at', digits(now), 'wire_format', ARGV[16], 'model', ARGV[17], 'request_id', ARGV[18] }
local function keep(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
if cost > 0 or input_price > 0 or output_price > 0 then
  keep('cost', digits(cost))
  keep('prices', digits(input_price) .. ' ' .. digits(output_price))
end
if ARGV[4] ~= '' then
  keep('owner', ARGV[4])
end
if ARGV[5] ~= '' then
  keep('hash', ARGV[5])
end
if ARGV[21] ~= '' then
  keep('also', ARGV[21])
end
if ARGV[25] == '1' and ARGV[24] ~= '' then
  keep('who', ARGV[24])
end
if ARGV[22] ~= '' then
  keep('idem', ARGV[23])
  if before then
    keep('before', before)
  end
  remember_attempt(KEYS[#KEYS], ARGV[5], id, ARGV[22])
end
if #shadow > 0 then
  keep('shadow', table.concat(shadow, ' '))
end
local chunks = math.ceil(#ARGV[20] / CHUNK)
keep('chunks', chunks)
for i = 1, chunks do
  keep('b' .. i, ARGV[20]:sub((i - 1) * CHUNK + 1, i * CHUNK))
end
redis.call('HSET', record, unpack(fields))
redis.call('PEXPIRE', record, digits(deadline + OPEN_SLACK_MS))
redis.call('ZADD', KEYS[4], digits(now + deadline), id)
-- The index lives as long as the record that lives longest.
keep_for(KEYS[4], deadline + OPEN_SLACK_MS)
return { 'taken', at.minute, input, input + output, cost, states, shadow }
