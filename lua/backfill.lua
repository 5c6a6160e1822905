-- backfill: writes limits that were read from SQL, if the lease still stands (see lease.lua).
--
-- KEYS[1] config:{root}          hash
-- ARGV[1] the lease's token      ARGV[3] rpm, ARGV[4] tpm: empty when there is no row of limits
-- ARGV[2] status: 1, 0, unknown  ARGV[6] version, ARGV[7] view: empty when no policy concerns the root
-- ARGV[5] life in ms
--
-- Reply: 1 when written, 0 when the lease is gone. What is empty is not written.

if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'status', ARGV[2])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'rpm', ARGV[3], 'tpm', ARGV[4])
end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[1], 'version', ARGV[6], 'view', ARGV[7])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
