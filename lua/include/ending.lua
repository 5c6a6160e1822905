-- How a reservation ends; shared by settle.lua and release.lua, which declare
-- KEYS[1] rate:tpm:{root}: (prefix), KEYS[2] the record, KEYS[3] pending:{root}.
--
-- Knowledge only grows: an end is applied when its rank is above the record's, so the same end twice,
-- or a worse one after a better one, changes nothing. What is charged moves by the difference to what
-- is charged already, in the window of the admission.

local REASONS = { client_gone = true, upstream_broken = true, upstream_refused = true }
local RECORD_TTL_MS = 900000

-- Returns the reply {status, reserved, charged before, charged, outcome}, and whether the answer may
-- still be written to the history; nil when there is no record.
local function finish(id, rank, charge, state, outcome, source)
  local record = redis.call('HMGET', KEYS[2],
    'rank', 'reserved', 'charged', 'outcome', 'minute', 'history')
  if not record[1] then
    return nil
  end
  local old_rank, reserved, before = tonumber(record[1]), tonumber(record[2]), tonumber(record[3])
  local old_outcome = record[4]

  if old_outcome == 'cut' and outcome == 'complete_estimated' and charge > before then
    -- Metering lost the answer, but Envoy says that it went on to its end: what passed unseen must
    -- not be free. The knowledge stays what it is.
    rank = math.max(rank, old_rank)
  elseif rank <= old_rank
    or (old_outcome == 'complete_estimated' and outcome == 'cut' and charge <= before) then
    -- Tokens stay. A plain "cut" may still learn who cut it.
    if old_outcome == 'cut' and REASONS[outcome] then
      redis.call('HSET', KEYS[2], 'outcome', outcome)
      if outcome == 'upstream_broken' and old_rank < 3 then
        redis.call('HSET', KEYS[2], 'state', 'RECONCILING')
      end
      return { 'classified', reserved, before, before, outcome }, false
    end
    return { 'noop', reserved, before, before, old_outcome }, false
  end

  if outcome == 'cut' and REASONS[old_outcome] then
    -- The reason came first, the tokens come now: keep the reason.
    outcome = old_outcome
    if outcome == 'upstream_broken' and rank < 3 then
      state = 'RECONCILING'
    end
  end
  local window = KEYS[1] .. record[5]
  -- A window that has expired is not made again: a key made here would live in nobody's minute.
  if charge ~= before and redis.call('EXISTS', window) == 1 then
    local left = redis.call('INCRBY', window, digits(charge - before))
    if left < 0 then
      -- Only after the window was evicted and made anew; then it never held these tokens.
      redis.call('INCRBY', window, digits(-left))
    end
  end
  redis.call('HSET', KEYS[2], 'rank', rank, 'charged', digits(charge), 'state', state,
    'outcome', outcome, 'source', source)
  redis.call('PEXPIRE', KEYS[2], RECORD_TTL_MS)
  redis.call('ZREM', KEYS[3], id)
  local status = old_rank == 0 and 'applied' or 'improved'
  return { status, reserved, before, charge, outcome }, record[6] ~= '1'
end
