-- drop_events: takes usage events out of the stream: the ledger has them.
--
-- KEYS[1] events:{root}          stream, usage events (include/event.lua)
--
-- ARGV[1] consumer group         ARGV[2..] event ids
--
-- Reply: how many events are left. An empty stream is removed, so that a root of which nothing is to
-- be told leaves nothing behind.

local group = redis.pcall('XACK', KEYS[1], unpack(ARGV))
if type(group) == 'table' and group.err then
  return group
end
redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
local left = redis.call('XLEN', KEYS[1])
if left == 0 then
  redis.call('DEL', KEYS[1])
end
return left
