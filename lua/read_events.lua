-- read_events: the next usage events of a root for one reader; they stay his until they are dropped.
--
-- KEYS[1] events:{root}          stream, usage events (include/event.lua)
--
-- ARGV[1] consumer group         ARGV[3] how many at most
-- ARGV[2] who reads              ARGV[4] ms, or empty: first those that another reader has had for so
--                                        long, and has neither dropped: he may have died
--
-- Reply: a list of {event id, {field, value ...}}.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end

local most, found = tonumber(ARGV[3]), {}

local function read()
  return redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', most - #found,
    'STREAMS', KEYS[1], '>')
end

local function is_new(reply)
  return type(reply) == 'table' and reply.err and reply.err:sub(1, 7) == 'NOGROUP'
end

if ARGV[4] ~= '' then
  local claimed = redis.pcall('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[4], '0-0', 'COUNT', most)
  if not claimed.err then
    for _, event in ipairs(claimed[2]) do
      if event and event[2] then
        found[#found + 1] = event
      end
    end
  elseif not is_new(claimed) then
    return claimed
  end
end
if #found == most then
  return found
end
local fresh = read()
if is_new(fresh) then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
  fresh = read()
end
if fresh and fresh.err then
  return fresh
end
for _, event in ipairs(fresh and fresh[1][2] or {}) do
  found[#found + 1] = event
end
return found
