--!include integers.lua
--!include clock.lua
--!include review.lua
-- reviews: how many reservations wait for people's word; drops what has waited for too long.
--
-- KEYS[1] review:{root}          sorted set, reservations by when they came into review (ms)
--
-- Reply: how many wait.

drop_old_reviews(KEYS[1], now_ms())
return redis.call('ZCARD', KEYS[1])
