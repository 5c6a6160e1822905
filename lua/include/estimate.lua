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

-- What history says, by mode "mean" or "quantile"; nil without any. Full minutes do not change any
-- more, so it is worked out once a minute.
local function expected_output(prefix, minute, mode, permille, margin)
  local kept = prefix .. 'expected:' .. mode .. permille .. ':' .. digits(minute)
  local known = redis.call('GET', kept)
  local expected
  if known then
    expected = tonumber(known)
  else
    -- The mean where there is no histogram yet: a root's first policy does not forget its past.
    expected = mode == 'quantile' and quantile_output(prefix, minute, permille)
      or mean_output(prefix, minute)
    redis.call('SET', kept, expected and digits(expected) or 'none', 'EX', ESTIMATE_TTL_S)
  end
  return expected and mode == 'quantile' and math.ceil(expected * margin / 100) or expected
end
