-- Usage events: one immutable entry of the stream events:{root} for each change of a charge; needs
-- integers.lua, clock.lua and ending.lua. What is done with them: docs/ledger.md.
--
-- An event holds the difference to what the events before it have told of this reservation. That is
-- kept in the record, as told = "revision input output cost", and then the kinds. So the sum of a
-- reservation's events is its charge, whatever came before and in whatever order; also when events
-- are switched on while it is open. What is told once (reserved) is in the first event only.

local function kinds_of(text)
  local kinds = {}
  for name, number in text:gmatch('([%w_]+) (%d+)') do
    kinds[name] = tonumber(number)
  end
  return kinds
end

-- The differences between two texts such as "cached_input 9, reasoning 11", in the same form.
local function kinds_between(before, after)
  if before == '' then
    return after
  end
  local old, new, names, changes = kinds_of(before), kinds_of(after), {}, {}
  for name in pairs(old) do
    new[name] = new[name] or 0
  end
  for name in pairs(new) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local change = new[name] - (old[name] or 0)
    if change ~= 0 then
      changes[#changes + 1] = name .. ' ' .. digits(change)
    end
  end
  return table.concat(changes, ', ')
end

-- Appends the event of an end to ``stream``. ``status`` is what finish did, ``input``, ``output`` and
-- ``kinds`` what is charged now where it did something. An undo of what never ended tells nothing:
-- that request was never admitted as a whole.
local function write_event(stream, record_key, id, status, input, output, kinds, is_undo)
  if status == 'noop' then
    return
  end
  local record = redis.call('HMGET', record_key, 'told', 'input', 'charged', 'cost', 'reserved',
    'request_id', 'wire_format', 'model', 'who', 'prices', 'price_version', 'state', 'outcome',
    'source', 'rank', 'at', 'minute')
  local told = record[1]
  if is_undo and not told then
    return
  end
  local charged, cost = tonumber(record[3]), tonumber(record[4] or 0)
  local revision, old_input, old_output, old_cost, old_kinds = 0, 0, 0, 0, ''
  if told then
    revision, old_input, old_output, old_cost, old_kinds =
      told:match('^(%d+) (%d+) (%d+) (%d+) ?(.*)$')
    revision, old_input = tonumber(revision), tonumber(old_input)
    old_output, old_cost = tonumber(old_output), tonumber(old_cost)
  end
  if status == 'classified' then
    -- The charge stands.
    input = told and old_input or math.min(tonumber(record[2]), charged)
    output, kinds = charged - input, old_kinds
  end
  local is_first = revision == 0
  revision = revision + 1
  redis.call('XADD', stream, '*',
    'v', 1,
    'revision', revision,
    'reservation_id', id,
    'request_id', record[6] or '',
    'root', record_key:match('{([^}]*)}'),
    'who', record[9] or '',
    'model', record[8] or '',
    'wire_format', record[7] or '',
    'input', digits(input - old_input),
    'output', digits(output - old_output),
    'cost', digits(cost - old_cost),
    'kinds', kinds_between(old_kinds, kinds),
    'reserved', is_first and record[5] or 0,
    'reserved_cost', is_first and digits(reserved_cost) or 0,
    'prices', record[10] or '',
    'price_version', record[11] or '',
    'state', record[12],
    'outcome', record[13],
    'source', record[14],
    'rank', record[15],
    'at', record[16] or 0,
    'minute', record[17],
    'settled', digits(now_ms()))
  local tells = revision .. ' ' .. digits(input) .. ' ' .. digits(output) .. ' ' .. digits(cost)
  redis.call('HSET', record_key, 'told', kinds == '' and tells or tells .. ' ' .. kinds)
end
