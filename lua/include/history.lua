-- What answers of the last full minutes were like; needs clock.lua and integers.lua.
-- ``prefix`` is usage:output:{root}:, ``minute`` the current one in minutes since the epoch.

local HISTORY_MINUTES = 10

-- The mean over all answers, rounded up; nil without any. Sums are divided once; a mean of the
-- minutes' means would let a quiet minute weigh as much as a busy one.
local function mean_output(prefix, minute)
  local count, sum = 0, 0
  for back = 1, HISTORY_MINUTES do
    local found = redis.call('HMGET', prefix .. minute_name(minute - back), 'count', 'output_tokens')
    count = count + tonumber(found[1] or 0)
    sum = sum + tonumber(found[2] or 0)
  end
  return count > 0 and math.ceil(sum / count) or nil
end
