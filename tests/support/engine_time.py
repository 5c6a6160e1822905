"""What the state machine does behind the engine's back: look at Redis, let time pass there."""

from dataclasses import dataclass, field
from typing import Any

import redis

# Everything there is, in one call: now in ms, then name, type, life in ms, content of each.
_DUMP = """
local time = redis.call('TIME')
local found = { time[1] * 1000 + math.floor(time[2] / 1000) }
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'string' then content = { redis.call('GET', key) }
  elseif kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  found[i + 1] = { key, kind, redis.call('PTTL', key), content }
end
return found
"""
# Time passes: everything that is stamped gets older; this minute's counters become another's.
_PASS_TIME = """
local step, past = tonumber(ARGV[1]), ARGV[3]
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local minute = key:match('^rate:.*:(' .. ARGV[2] .. ')$')
  if kind == 'zset' then
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do
      redis.call('ZADD', key, string.format('%.0f', tonumber(all[i + 1]) - step), all[i])
    end
  elseif key:match('^bucket:') then
    redis.call('HINCRBY', key, 'at', -step)
  elseif key:match('^resv:') and redis.call('HGET', key, 'minute') == ARGV[2] then
    redis.call('HSET', key, 'minute', past)
  elseif minute then
    redis.call('RENAME', key, key:sub(1, -#minute - 1) .. past)
  end
end
"""
# Entries of a sliding window that left it a moment ago and have not been taken out.
_FLOOD = """
local time = redis.call('TIME')
local score = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1] - 1
for i = 1, ARGV[2] do
  redis.call('ZADD', KEYS[1], string.format('%.0f', score), ARGV[3] .. i)
  if KEYS[2] then
    redis.call('HSET', KEYS[2], ARGV[3] .. i, 5)
    redis.call('HINCRBY', KEYS[2], 'sum', 5)
  end
end
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, ARGV[1])
end
"""


@dataclass
class Dump:
    """All keys at one moment (Unix ms). A hash's content is flat, a sorted set's with scores."""

    now: int
    lives: dict[str, int] = field(default_factory=dict)
    contents: dict[str, list[str]] = field(default_factory=dict)

    def hash(self, key: str) -> dict[str, str]:
        """A hash, empty where there is none."""
        content = self.contents.get(key, [])
        return dict(zip(content[::2], content[1::2], strict=True))

    def alive(self, key: str, length: int) -> set[str]:
        """Members of a sorted set that were scored less than ``length`` ms ago."""
        pairs = self.hash(key).items()
        return {member for member, score in pairs if float(score) > self.now - length}

    def beginning(self, prefix: str) -> dict[str, list[str]]:
        """Contents by key, of keys that begin so."""
        return {key: value for key, value in self.contents.items() if key.startswith(prefix)}


def dump(client: redis.Redis) -> Dump:
    """Look at everything."""
    now, *keys = _answer(client.eval(_DUMP, 0))
    found = Dump(now)
    for key, _, life, content in keys:
        found.lives[key], found.contents[key] = life, content
    return found


def pass_time(client: redis.Redis, step_ms: int, *, minute: str, past: str) -> None:
    """Make everything older; counters of ``minute`` become those of ``past``."""
    client.eval(_PASS_TIME, 0, step_ms, minute, past)


def flood(client: redis.Redis, keys: list[str], number: int, *, window_ms: int, name: str) -> None:
    """Put entries that are due into a sliding window: its key and, if any, that of its amounts."""
    client.eval(_FLOOD, len(keys), *keys, window_ms, number, name)


def _answer(reply: Any) -> Any:
    return reply
