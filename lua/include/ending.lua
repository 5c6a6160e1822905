-- How a reservation ends; shared by settle.lua and release.lua, which declare
-- KEYS[1] rate:tpm:{root}: (prefix), KEYS[2] the record, KEYS[3] pending:{root}, KEYS[4] rate:rpm:{root}:
-- (prefix). Needs integers.lua, clock.lua, periods.lua, cost.lua, counters.lua and correct.lua.
--
-- Knowledge only grows: an end is applied when its rank is above the record's, so the same end twice,
-- or a worse one after a better one, changes nothing. What is charged moves by the difference to what
-- is charged already, in the window or period of the admission.
--
-- One guess may be overturned by another: that of the admission, which releases when its answer seems
-- not to have arrived. Envoy may have got it all the same, and then what it forwarded must not be free.

-- What was held in money until this end, where it was the first.
local reserved_cost = 0

local REASONS = { client_gone = true, upstream_broken = true, upstream_refused = true }

-- Moves a window of a simple root. One that has expired is not made again: a key made here would live
-- in nobody's minute.
local function move_window(window, change)
  if change ~= 0 and redis.call('EXISTS', window) == 1 then
    local left = redis.call('INCRBY', window, digits(change))
    if left < 0 then
      -- Only after the window was evicted and made anew; then it never held these tokens.
      redis.call('INCRBY', window, digits(-left))
    end
  end
end

-- Moves the counters of a policy root's record to the charge of ``input``, ``output``, ``cost`` (nil:
-- by the record's prices) and ``requests``.
local function move_counters(id, chunks, minute, is_first, input, output, cost, requests)
  local record = redis.call('HMGET', KEYS[2], 'in', 'charged', 'cost', 'prices', 'requests', 'at')
  local before_input, before = tonumber(record[1]), tonumber(record[2])
  local before_cost = tonumber(record[3] or 0)
  if is_first then
    reserved_cost = before_cost
  end
  if not cost then
    local input_price, output_price = (record[4] or '0 0'):match('(%d+) (%d+)')
    cost = cost_of(input, output, tonumber(input_price), tonumber(output_price))
  end
  local move = {
    id = id,
    now = now_ms(),
    is_first = is_first,
    at = tonumber(record[6]),
    before = { r = tonumber(record[5] or 1), s = 1, i = before_input, o = before - before_input,
      t = before, c = before_cost },
    after = { r = requests, s = 0, i = input, o = output, t = input + output, c = cost },
  }
  local broken
  each_counter(KEYS[2], chunks, minute, tonumber(record[6]), function(kind, unit, key, period)
    -- One counter that somebody has spoilt must not keep the others from being moved, nor let them be
    -- moved again by the next try.
    if not pcall(correct_one, kind, unit, key, move, period) then
      broken = key
    end
  end)
  if broken then
    redis.call('HSET', KEYS[2], 'broken', broken)
  end
  redis.call('HSET', KEYS[2], 'in', digits(input))
  if cost ~= before_cost then
    redis.call('HSET', KEYS[2], 'cost', digits(cost))
  end
end

-- Returns the reply {status, reserved, charged before, charged, outcome, other roots}, whether the answer may
-- still be written to the history, and whether the root has policies; nil when there is no record.
-- ``requests`` is how many requests stay counted: 1, or 0 for an undo.
local function finish(id, rank, input, output, cost, state, outcome, source, requests)
  local charge = input + output
  local record = redis.call('HMGET', KEYS[2],
    'rank', 'reserved', 'charged', 'outcome', 'minute', 'history', 'chunks', 'requests', 'state',
    'source', 'also')
  if not record[1] then
    return nil
  end
  local old_rank, reserved, before = tonumber(record[1]), tonumber(record[2]), tonumber(record[3])
  local old_outcome, minute, chunks = record[4], record[5], tonumber(record[7])
  local also, old_requests = record[11] or '', tonumber(record[8] or 1)
  if charge == 0 then
    -- What was undone is not counted again by whoever only knows that nothing was used.
    requests = math.min(requests, old_requests)
  end
  local was_forwarded = rank == 1 and old_rank == 1 and charge > 0 and source ~= 'admission'
    and record[9] == 'RELEASED' and record[10] == 'admission'

  if source == 'reaper' and old_rank == 0
    and tonumber(redis.call('ZSCORE', KEYS[3], id) or 0) > now_ms() then
    -- Renewed since the reaper looked.
    return { 'noop', reserved, before, before, '', also }, false
  end

  if old_outcome == 'cut' and outcome == 'complete_estimated' and charge > before then
    -- Metering lost the answer, but Envoy says that it went on to its end: what passed unseen must
    -- not be free. The knowledge stays what it is.
    rank = math.max(rank, old_rank)
  elseif (rank <= old_rank and not was_forwarded)
    or (old_outcome == 'complete_estimated' and outcome == 'cut' and charge <= before) then
    -- Tokens stay. A plain "cut" may still learn who cut it.
    if old_outcome == 'cut' and REASONS[outcome] then
      redis.call('HSET', KEYS[2], 'outcome', outcome)
      if outcome == 'upstream_broken' and old_rank < 3 then
        redis.call('HSET', KEYS[2], 'state', 'RECONCILING')
      end
      return { 'classified', reserved, before, before, outcome, also }, false
    end
    return { 'noop', reserved, before, before, old_outcome, also }, false
  end

  if outcome == 'cut' and REASONS[old_outcome] then
    -- The reason came first, the tokens come now: keep the reason.
    outcome = old_outcome
    if outcome == 'upstream_broken' and rank < 3 then
      state = 'RECONCILING'
    end
  end
  if chunks then
    move_counters(id, chunks, minute, old_rank == 0, input, output, cost, requests)
  else
    move_window(KEYS[1] .. minute, charge - before)
    move_window(KEYS[4] .. minute, requests - old_requests)
  end
  redis.call('HSET', KEYS[2], 'rank', rank, 'charged', digits(charge), 'state', state,
    'outcome', outcome, 'source', source)
  if requests ~= old_requests then
    redis.call('HSET', KEYS[2], 'requests', requests)
  end
  redis.call('PEXPIRE', KEYS[2], RECORD_SLACK_MS)
  redis.call('ZREM', KEYS[3], id)
  local status = old_rank == 0 and 'applied' or 'improved'
  return { status, reserved, before, charge, outcome, also }, record[6] ~= '1', chunks ~= nil
end
