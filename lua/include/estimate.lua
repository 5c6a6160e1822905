-- Expected output of a policy root; needs history.lua and histogram.lua.

local ESTIMATE_TTL_S = 120

-- The upper edge of the bin that holds the quantile; nil without a histogram.
local function quantile_output(prefix, minute, permille)
  local bins, count = {}, 0
  for back = 1, HISTORY_MINUTES do
    local found = redis.call('HGETALL', prefix .. minute_name(minute - back))
    for i = 1, #found, 2 do
      local bin = tonumber(found[i]:match('^h(%d+)$'))
      if bin then
        bins[bin] = (bins[bin] or 0) + tonumber(found[i + 1])
        count = count + tonumber(found[i + 1])
      end
    end
  end
  if count == 0 then
    return nil
  end
  local order = {}
  for bin in pairs(bins) do
    order[#order + 1] = bin
  end
  table.sort(order)
  local wanted, seen = math.ceil(count * permille / 1000), 0
  for _, bin in ipairs(order) do
    seen = seen + bins[bin]
    if seen >= wanted then
      return histogram_edge(bin)
    end
  end
end

-- Works out what one history says by mode "mean" or "quantile", and keeps it: full minutes do not
-- change any more. nil without any answers.
local function work_out(prefix, kept, minute, mode, permille)
  -- The mean where there is no histogram yet: a root's first policy does not forget its past.
  local expected = mode == 'quantile' and quantile_output(prefix, minute, permille)
    or mean_output(prefix, minute)
  redis.call('SET', kept, expected and digits(expected) or 'none', 'EX', ESTIMATE_TTL_S)
  return expected
end

-- What the history of the model says, or, where it has no answers yet, that of the root; nil without
-- any. Worked out once a minute. For a model without answers nothing is kept: its name is a client's
-- text, and refused requests must not fill the memory with names.
local function expected_output(model_prefix, prefix, minute, mode, permille, margin)
  local suffix = 'expected:' .. mode .. permille .. ':' .. digits(minute)
  local kept, model_kept = prefix .. suffix, model_prefix .. suffix
  local known = redis.call('MGET', model_kept, model_prefix .. 'last', kept)
  local expected
  if known[1] then
    expected = tonumber(known[1])
  elseif known[2] then
    expected = work_out(model_prefix, model_kept, minute, mode, permille)
  end
  if not expected and known[3] then
    expected = tonumber(known[3])
  elseif not expected then
    expected = work_out(prefix, kept, minute, mode, permille)
  end
  return expected and mode == 'quantile' and math.ceil(expected * margin / 100) or expected
end
