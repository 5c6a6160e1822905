-- Money: micro-USD of tokens at a price in micro-USD for a million tokens, rounded up.

-- Sums of money stay below 2^53, where doubles are exact. Limits end at 2^51, so the most that is
-- ever counted is never affordable.
local MOST_MONEY = 2 ^ 52

local function class_cost(tokens, price)
  local millions = math.floor(tokens / 1000000)
  -- Split, so that no product passes 2^53 unless the result does.
  return math.min(MOST_MONEY,
    millions * price + math.ceil((tokens - millions * 1000000) * price / 1000000))
end

local function cost_of(input, output, input_price, output_price)
  return math.min(MOST_MONEY, class_cost(input, input_price) + class_cost(output, output_price))
end

-- The most tokens that cost no more than an amount.
local function tokens_for(money, price)
  if money <= 0 then
    return 0
  end
  local tokens = math.floor(math.min(2 ^ 51, money / price * 1000000))
  while tokens > 0 and class_cost(tokens, price) > money do
    tokens = tokens - 1
  end
  return tokens
end
