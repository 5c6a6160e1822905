-- read_events: usage events of a root for one reader; they stay his until they are dropped.
--
-- KEYS[1] events:{root}          stream, usage events (include/event.lua)
--
-- ARGV[1] consumer group         ARGV[3] how many at most
-- ARGV[2] who reads              ARGV[4] empty: those that nobody has read. Else ms: those that
--                                        another reader has had for so long, and not dropped: he
--                                        may have died
--
-- Reply: a list of {event id, {field, value ...}}.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end

local function is_new(reply)
  return type(reply) == 'table' and reply.err and reply.err:sub(1, 7) == 'NOGROUP'
end

if ARGV[4] ~= '' then
  local found, most, cursor = {}, tonumber(ARGV[3]), '0-0'
  repeat
    local claimed = redis.pcall('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[4], cursor,
      'COUNT', most - #found)
    if is_new(claimed) then
      return {}
    elseif claimed.err then
      return claimed
    end
    for _, event in ipairs(claimed[2]) do
      if event and event[2] then
        found[#found + 1] = event
      end
    end
    cursor = claimed[1]
  until cursor == '0-0' or #found == most
  return found
end

local function read()
  return redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3],
    'STREAMS', KEYS[1], '>')
end

local fresh = read()
if is_new(fresh) then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
  fresh = read()
end
if fresh and fresh.err then
  return fresh
end
return fresh and fresh[1][2] or {}
