-- The last refusals of a root, for people who ask why (stores/explain_refusals.py reads them). Bounded
-- in number, size and life, so that a storm of refusals costs no memory; needs integers.lua.

local MOST_REFUSALS = 50
local REFUSALS_KEPT_S = 3600
-- Of the limits that refused a request so many are named: those that last longest.
local MOST_NAMED = 16
local MOST_NOTE_BYTES = 256

-- A client's text without what is too much of it; no character is cut in two.
local function short(text)
  if #text <= MOST_NOTE_BYTES then
    return text
  end
  return (text:sub(1, MOST_NOTE_BYTES):gsub('[\192-\255][\128-\191]*$', ''))
end

-- ``by`` has what refused: { name, retry ms (-1: never), limit, left, burst of a token bucket } each.
-- ``call.who`` is text of its own (core/subjects.py), bounded there. Names are rpm and tpm of
-- simple roots, else the counter as a record keeps it (see correct.lua).
local function keep_refusal(key, now, call, input, total, cost, by)
  for order, one in ipairs(by) do
    one.order = order
    one.wait = one[2] < 0 and math.huge or one[2]
  end
  -- The binding one comes first.
  table.sort(by, function(a, b)
    if a.wait ~= b.wait then
      return a.wait > b.wait
    end
    return a.order < b.order
  end)
  local named = {}
  for i = 1, math.min(#by, MOST_NAMED) do
    named[i] = { by[i][1], digits(by[i][2]), digits(by[i][3]), digits(by[i][4]),
      by[i][5] and digits(by[i][5]) }
  end
  -- Numbers are text: cjson would round large ones.
  local entry = cjson.encode({ at = digits(now), id = call.id, request = short(call.request_id),
    model = short(call.model), input = digits(input), tokens = digits(total), cost = digits(cost),
    by = named, more = digits(#by - #named), who = call.who })
  -- What is only for people never changes an answer, not even when Redis' memory is full.
  local length = redis.pcall('LPUSH', key, entry)
  if type(length) == 'number' then
    if length > MOST_REFUSALS then
      redis.call('LTRIM', key, 0, MOST_REFUSALS - 1)
    end
    redis.call('EXPIRE', key, REFUSALS_KEPT_S)
  end
end
