-- Periods of a quota, in UTC; needs clock.lua. A period is "d" (day), "m" (month), or "c" and the id
-- of a contract cycle.

local DAY_MS = 86400000

-- The name of the period in which a time (ms) is.
local function period_name(period, time)
  local kind = period:sub(1, 1)
  if kind == 'c' then
    return period:sub(2)
  end
  local year, month, day = date_of(math.floor(time / DAY_MS))
  if kind == 'd' then
    return string.format('%04d%02d%02d', year, month, day)
  end
  return string.format('%04d%02d', year, month)
end

-- When a day or month ends (ms).
local function period_end(period, time)
  local day = math.floor(time / DAY_MS)
  if period == 'd' then
    return (day + 1) * DAY_MS
  end
  local _, _, day_of_month = date_of(day)
  -- 31 days after the first is always in the next month.
  local first = day - day_of_month + 1
  local _, _, past = date_of(first + 31)
  return (first + 31 - past + 1) * DAY_MS
end
