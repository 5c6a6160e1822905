-- Lua's numbers are doubles and would be written as 3e+09; Redis needs plain digits.
local function digits(number)
  return string.format('%.0f', number)
end
