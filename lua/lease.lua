-- lease: the second look at the cached limits, and the right to fill them in.
--
-- KEYS[1] config:{root}          hash
-- ARGV[1] a fresh token          ARGV[2] life of the lease in ms
--
-- Replies: limits, status, rpm, tpm  (rpm and tpm empty when the service is unknown)
--          lease, token              to be shown to backfill.lua
-- Readers that meet share one lease. A change of limits deletes the whole key and the lease with it,
-- so a reader that looked into SQL before the change can no longer write what it saw.

local cached = redis.call('HMGET', KEYS[1], 'status', 'rpm', 'tpm')
if cached[1] == 'unknown' then
  return { 'limits', 'unknown', '', '' }
end
if cached[1] and tonumber(cached[2] or '') and tonumber(cached[3] or '') then
  return { 'limits', cached[1], cached[2], cached[3] }
end
if redis.call('HSETNX', KEYS[1], 'lease', ARGV[1]) == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { 'lease', ARGV[1] }
end
return { 'lease', redis.call('HGET', KEYS[1], 'lease') }
