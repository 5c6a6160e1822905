--!include integers.lua
--!include clock.lua
--!include periods.lua
--!include cost.lua
--!include counters.lua
--!include correct.lua
--!include ending.lua
--!include event.lua
--!include idempotency.lua
--!include review.lua
-- release: gives all tokens back and keeps the request count, or (undo) gives that back too.
--
-- KEYS[1] rate:tpm:{root}:       prefix; the minute comes from the record (see reserve.lua)
-- KEYS[2] resv:{root}:<id>       hash, the record
-- KEYS[3] pending:{root}         sorted set, open reservations
-- KEYS[4] rate:rpm:{root}:       prefix of the request windows
-- KEYS[5] review:{root}          sorted set, what waits for people's word (see review.lua)
-- KEYS[6] events:{root}          stream, where usage events are wanted (see event.lua)
--
-- ARGV[1] reservation id         ARGV[3] outcome
-- ARGV[2] rank of the knowledge  ARGV[4] source
-- ARGV[5] 1: undo
--
-- Reply as of settle. Without a record the answer is "missing", and the id is remembered, so that a
-- reserve which was overtaken by its release takes nothing.

local TOMBSTONE_TTL_S = 120

local reply = finish(ARGV[1], tonumber(ARGV[2]), 0, 0, 0, 'RELEASED', ARGV[3], ARGV[4],
  ARGV[5] == '1' and 0 or 1)
if reply then
  if ARGV[5] == '1' then
    forget_attempt(KEYS[2], ARGV[1])
    local drawable = redis.call('HGET', KEYS[2], 'until')
    if drawable then
      -- A slice: whoever still draws from it finds that nothing is left (draw.lua).
      redis.call('PEXPIREAT', KEYS[2], drawable)
    end
  end
  review(KEYS[5], KEYS[2], ARGV[1], reply[1], 'RELEASED', ARGV[4])
  if KEYS[6] then
    write_event(KEYS[6], KEYS[2], ARGV[1], reply[1], 0, 0, '', ARGV[5] == '1')
  end
  return reply
end
redis.call('HSET', KEYS[2], 'state', 'RELEASED', 'rank', 3, 'reserved', 0, 'charged', 0,
  'minute', '', 'outcome', ARGV[3], 'source', ARGV[4])
redis.call('EXPIRE', KEYS[2], TOMBSTONE_TTL_S)
return { 'missing' }
