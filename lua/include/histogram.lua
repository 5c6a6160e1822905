-- Log-spaced histogram of answer lengths: fields h<bin> beside the sums of history.lua.
-- Bin 0 is no tokens; from there four bins a power of two, so a bin's upper edge is at most 19 %
-- above any length in it.

local QUARTERS = { 0.5 * 2 ^ 0.25, 0.5 * 2 ^ 0.5, 0.5 * 2 ^ 0.75 }

local function histogram_bin(tokens)
  if tokens < 1 then
    return 0
  end
  local part, power = math.frexp(tokens)
  local quarter = part < QUARTERS[1] and 0 or part < QUARTERS[2] and 1 or part < QUARTERS[3] and 2 or 3
  return 4 * (power - 1) + quarter + 1
end

-- The longest answer of a bin.
local function histogram_edge(bin)
  if bin == 0 then
    return 0
  end
  local power, quarter = math.floor(bin / 4), bin % 4
  return math.ceil((quarter == 0 and 1 or 2 * QUARTERS[quarter]) * 2 ^ power) - 1
end
