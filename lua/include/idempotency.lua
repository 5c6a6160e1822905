-- A client's idempotency key: idem:{root}:<digest of the key>, a hash of the attempt that used it last
-- (rid) and of what it asked (hash).

-- Returns why the key may not be used now, or nil and the id of the attempt before, if any.
-- ``record`` is the key of this attempt's record, which ends with ``id``.
local function earlier_attempt(key, hash, record, id)
  local known = redis.call('HMGET', key, 'rid', 'hash')
  if not known[1] then
    return nil, nil
  elseif known[2] ~= hash then
    return 'key_reused', nil
  end
  local records = record:sub(1, #record - #id)
  if redis.call('HGET', records .. known[1], 'rank') == '0' then
    return 'in_flight', nil
  end
  return nil, known[1]
end

local function remember_attempt(key, hash, id, ttl)
  redis.call('HSET', key, 'rid', id, 'hash', hash)
  redis.call('PEXPIRE', key, ttl)
end

local function attempt_key(record, word)
  return 'idem:' .. record:match('{[^}]*}') .. ':' .. word
end

-- An attempt that another root refused never was: a refusal is not sticky.
local function forget_attempt(record, id)
  local found = redis.call('HMGET', record, 'idem', 'before')
  if found[1] then
    local key = attempt_key(record, found[1])
    if redis.call('HGET', key, 'rid') ~= id then
      return
    elseif found[2] then
      redis.call('HSET', key, 'rid', found[2])
    else
      redis.call('DEL', key)
    end
  end
end

-- A key lives at least as long as its attempt may.
local function prolong_attempt(record, word, ttl)
  redis.call('PEXPIRE', attempt_key(record, word), digits(ttl), 'GT')
end
