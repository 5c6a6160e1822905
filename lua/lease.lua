-- lease: the second look at the cached limits, and the right to fill them in.
--
-- KEYS[1] config:{root}          hash
-- ARGV[1] a fresh token          ARGV[2] life of the lease in ms
--
-- Replies: limits, status, rpm, tpm, view   rpm and tpm are empty when there is no row of limits,
--                                           view when no policy concerns the root
--          lease, token                     to be shown to backfill.lua
-- Readers that meet share one lease. A change of limits deletes the whole key and the lease with it,
-- so a reader that looked into SQL before the change can no longer write what it saw.

local cached = redis.call('HMGET', KEYS[1], 'status', 'rpm', 'tpm', 'version', 'view')
local status, rpm, tpm, version, view = unpack(cached)
if status == 'unknown' then
  return { 'limits', 'unknown', '', '', '' }
end
local has_limits = tonumber(rpm or '') and tonumber(tpm or '')
local has_view = (view or '') ~= ''
-- One of the two without the other is spoilt: SQL decides, as for what is not cached.
local is_whole = has_view == ((version or '') ~= '')
if status and is_whole and (has_limits or has_view) then
  return { 'limits', status, rpm or '', tpm or '', view or '' }
end
if redis.call('HSETNX', KEYS[1], 'lease', ARGV[1]) == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { 'lease', ARGV[1] }
end
return { 'lease', redis.call('HGET', KEYS[1], 'lease') }
