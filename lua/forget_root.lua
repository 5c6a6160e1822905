-- forget_root: takes a shared root out of the register, if nobody has asked it since.
--
-- KEYS[1] roots:across           sorted set, shared roots by when they were last asked (ms)
-- ARGV[1] the root               ARGV[2] asked at this time or before (ms)
--
-- Reply: 1 when it is gone, 0 when it was asked meanwhile or was not there.

local asked = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '')
if asked and asked <= tonumber(ARGV[2]) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
