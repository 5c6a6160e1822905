-- Time, always from Redis. Prepended to the scripts that include it.

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Year, month and day of a day given in days since the epoch. Redis' Lua has no os.date, so it is
-- computed: years begin in March, which puts the leap day at their end, and the calendar repeats
-- every 400 years (146097 days).
local function date_of(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = math.floor((day_of_era - math.floor(day_of_era / 1460)
    + math.floor(day_of_era / 36524) - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era
    - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local march_month = math.floor((5 * day_of_year + 2) / 153)
  local month = march_month < 10 and march_month + 3 or march_month - 9
  local year = year_of_era + era * 400 + (month <= 2 and 1 or 0)
  return year, month, day_of_year - math.floor((153 * march_month + 2) / 5) + 1
end

-- The UTC name yyyyMMddHHmm of a minute given in minutes since the epoch.
local function minute_name(minute)
  local day = math.floor(minute / 1440)
  local rest = minute - day * 1440
  local year, month, day_of_month = date_of(day)
  return string.format('%04d%02d%02d%02d%02d', year, month, day_of_month,
    math.floor(rest / 60), rest % 60)
end
