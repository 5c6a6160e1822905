"""Any order of reserve, retry, settle, release, renew, reap and passing time, against a model.

A few hundred sequences by default; ``HYPOTHESIS_PROFILE=long`` runs many more.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from extproc.core.buckets import Bucket, BucketKind, Unit
from extproc.core.errors import StoreUnavailableError
from extproc.core.reservations import (
    Admitted,
    Conflict,
    IdConflict,
    Knowledge,
    Outcome,
    Rejected,
    ReserveRequest,
    Settlement,
    Source,
    State,
)
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.engine import STRICT, asking, cache_view
from tests.support.engine_model import (
    INPUT_PRICE,
    LEASE_MS,
    LIMITS,
    OUTPUT_PRICE,
    STEP_MS,
    Model,
    amounts_of,
)
from tests.support.reservations import ROOT, settlement
from tests.support.valkey import wait_for_quiet_minute

T = TypeVar("T")

_COMMON = settings(
    deadline=None, suppress_health_check=list(HealthCheck), stateful_step_count=30, database=None
)
_PROFILES = {
    "default": settings(_COMMON, max_examples=200),
    "long": settings(_COMMON, max_examples=5000, stateful_step_count=60),
}

# Everything there is, in one call: name, type, ttl, content.
_DUMP = """
local found = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'string' then content = { redis.call('GET', key) }
  elseif kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  found[i] = { key, kind, redis.call('PTTL', key), content }
end
return found
"""
# Time passes: everything that is stamped gets older; this minute's counters become another's.
_PASS_TIME = """
local step, now, past = tonumber(ARGV[1]), ARGV[2], ARGV[3]
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' then
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do
      redis.call('ZADD', key, string.format('%.0f', tonumber(all[i + 1]) - step), all[i])
    end
  elseif key:match('^bucket:') then
    redis.call('HINCRBY', key, 'at', -step)
  elseif key:match('^resv:') and redis.call('HGET', key, 'minute') == now then
    redis.call('HSET', key, 'minute', past)
  elseif key:match('^rate:.*:' .. now .. '$') then
    redis.call('RENAME', key, (key:gsub(now .. '$', past)))
  end
end
"""


class EngineMachine(RuleBasedStateMachine):
    """Real scripts on the left, ``Model`` on the right."""

    reservations: Bundle[str] = Bundle("reservations")

    def __init__(
        self, client: redis.Redis, store: RedisReservationStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self.client, self.store, self.loop = client, store, loop
        self.model = Model()
        self.requests: dict[str, ReserveRequest] = {}

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    @initialize()
    def clean(self) -> None:
        self.client.flushdb()
        cache_view(self.client)
        wait_for_quiet_minute(self.client, seconds=3)
        self.model = Model()

    @rule(
        target=reservations,
        input_tokens=st.integers(0, 120),
        cap=st.integers(0, 200),
        number=st.integers(0, 10_000),
    )
    def reserve(self, input_tokens: int, cap: int, number: int) -> str:
        rid = f"r{number}"
        if rid in self.model.entries:
            return rid
        request = asking(
            *LIMITS,
            rid=rid,
            input_tokens=input_tokens,
            cap=cap,
            deadline_ms=LEASE_MS,
            estimate=STRICT,
            input_price=INPUT_PRICE,
            output_price=OUTPUT_PRICE,
            owner="me",
            request_hash=rid,
        )
        if rid in self.model.tombstones:
            self._is_released(request)
            return rid
        wanted = amounts_of(input_tokens, cap)
        must, may = self.model.refusals(wanted)
        verdict = self.wait(self.store.reserve(request))
        if isinstance(verdict, Rejected):
            refused = {refusal.label for refusal in verdict.refusals}
            assert must <= refused <= may
        else:
            assert isinstance(verdict, Admitted)
            assert not must
            self.requests[rid] = request
            self.model.take(rid, wanted)
            for limit, state in zip(LIMITS, verdict.buckets, strict=True):
                least, most = self.model.used(limit)
                size = limit.capacity or limit.limit
                assert size - most <= state.remaining <= size - least
        return rid

    @rule(rid=reservations, other=st.booleans())
    def retry(self, rid: str, other: bool) -> None:
        request = self.requests.get(rid)
        if request is None:
            return
        entry = self.model.entries[rid]
        if other:
            verdict = self.wait(self.store.reserve(replace(request, request_hash="other")))
            assert verdict == IdConflict(Conflict.REQUEST)
        elif entry.released:
            self._is_released(request)
        else:
            verdict = self.wait(self.store.reserve(request))
            assert isinstance(verdict, Admitted)
            assert verdict.reserved_tokens == entry.taken[Unit.TOTAL]
            assert verdict.reserved_cost_micros == entry.taken[Unit.COST]

    def _is_released(self, request: ReserveRequest) -> None:
        try:
            self.wait(self.store.reserve(request))
        except StoreUnavailableError as error:
            assert "released" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a released id took something")

    @rule(
        rid=reservations,
        input_tokens=st.integers(0, 150),
        output_tokens=st.integers(0, 400),
        rank=st.sampled_from([Knowledge.GUESSED, Knowledge.COUNTED, Knowledge.KNOWN]),
        history=st.booleans(),
    )
    def settle(
        self, rid: str, input_tokens: int, output_tokens: int, rank: Knowledge, history: bool
    ) -> None:
        end = settlement(rid, input_tokens, output_tokens, knowledge=rank, history=history)
        charged = amounts_of(input_tokens, output_tokens)
        self._end(end, charged)

    @rule(
        rid=reservations,
        rank=st.sampled_from([Knowledge.GUESSED, Knowledge.KNOWN]),
    )
    def release(self, rid: str, rank: Knowledge) -> None:
        self._end(settlement(rid, knowledge=rank, state=State.RELEASED), amounts_of(0, 0))

    @rule(rid=reservations)
    def undo(self, rid: str) -> None:
        end = replace(settlement(rid, state=State.RELEASED), undo=True)
        self._end(end, amounts_of(0, 0, requests=0))

    def _end(self, end: Settlement, charged: dict[Unit, int]) -> None:
        released = end.state is State.RELEASED
        expected = self.model.end(
            end.reservation_id, int(end.knowledge), charged, released=released
        )
        call = self.store.release if released else self.store.settle
        result = self.wait(call(end))
        assert result.status == expected
        if expected in ("applied", "improved"):
            assert result.charged_tokens == charged[Unit.TOTAL]

    @rule(rid=reservations)
    def renew(self, rid: str) -> None:
        expected = self.model.renew(rid)
        assert self.wait(self.store.renew(ROOT, rid, deadline_ms=LEASE_MS)) == expected

    @rule(rid=st.integers(0, 10_000).map("r{}".format))
    def release_what_may_not_exist(self, rid: str) -> None:
        if rid not in self.model.entries:
            self.release(rid=rid, rank=Knowledge.KNOWN)

    @rule()
    def pass_time(self) -> None:
        self.client.eval(_PASS_TIME, 0, STEP_MS, self._minute(), f"past{self.model.step:08d}")
        self.model.pass_step()

    @rule()
    def reap(self) -> None:
        due = {
            rid
            for rid, entry in self.model.entries.items()
            if not entry.rank and entry.deadline <= self.model.step
        }
        found = self.wait(self.store.overdue(ROOT, at_most=1000))
        assert {reservation.reservation_id for reservation in found} == due
        for reservation in found:
            output = reservation.reserved_tokens - reservation.input_tokens
            end = settlement(
                reservation.reservation_id,
                reservation.input_tokens,
                output,
                knowledge=Knowledge.GUESSED,
                outcome=Outcome.UNREPORTED,
                source=Source.REAPER,
                state=State.EXPIRED,
            )
            self._end(end, amounts_of(reservation.input_tokens, output))

    def _minute(self) -> str:
        seconds = int(self.client.time()[0])
        return time.strftime("%Y%m%d%H%M", time.gmtime(seconds))

    @invariant()
    def books_balance(self) -> None:
        dump: Any = self.client.eval(_DUMP, 0)
        found = {key: (kind, content) for key, kind, _, content in dump}
        assert [key for key, _, ttl, _ in dump if ttl < 0] == []
        for limit in LIMITS:
            self._check(limit, found)
        pending = found.get(keys.pending(ROOT), ("", []))[1]
        assert set(pending[::2]) == {r for r, e in self.model.entries.items() if not e.rank}

    def _check(self, limit: Bucket, found: dict[str, tuple[str, list[str]]]) -> None:
        model = self.model
        if limit.kind is BucketKind.MINUTE:
            used = {
                key.removeprefix(limit.key): int(content[0])
                for key, (_, content) in found.items()
                if key.startswith(limit.key)
            }
            steps = {entry.minute for entry in model.entries.values()}
            assert sorted(used.values()) == sorted(model.minute_used(limit, s) for s in steps)
            for name, amount in used.items():
                step = int(name[4:]) if name.startswith("past") else model.step
                assert amount == model.minute_used(limit, step) >= 0
        elif limit.kind is BucketKind.QUOTA:
            hashes = [content for key, (_, content) in found.items() if key.startswith(limit.key)]
            fields = [dict(zip(h[::2], map(int, h[1::2]), strict=True)) for h in hashes]
            used_held = (
                sum(f.get("used", 0) for f in fields),
                sum(f.get("held", 0) for f in fields),
            )
            assert used_held == model.quota(limit)
        elif limit.kind is BucketKind.SLOTS:
            assert self._alive(found, limit.key, 0) == model.holders()
        elif limit.kind is BucketKind.SLIDING:
            alive = self._alive(found, limit.key, limit.window_ms)
            assert alive == set(model.window(limit))
            if limit.unit is not Unit.REQUESTS:
                content = found.get(limit.key + ":n", ("", []))[1]
                amounts = dict(zip(content[::2], map(int, content[1::2]), strict=True))
                assert amounts.pop("sum", 0) == sum(amounts.values())
                assert set(amounts) == set(found.get(limit.key, ("", []))[1][::2])
                assert {rid: amounts[rid] for rid in alive} == model.window(limit)

    def _alive(self, found: dict[str, tuple[str, list[str]]], key: str, length: int) -> set[str]:
        content = found.get(key, ("", []))[1]
        seconds, micros = self.client.time()
        now = seconds * 1000 + micros // 1000
        pairs = zip(content[::2], content[1::2], strict=True)
        return {member for member, score in pairs if float(score) > now - length}


def test_any_order_of_calls_agrees_with_the_model(redis_url: str) -> None:
    loop = asyncio.new_event_loop()
    profile = _PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "default")]
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:

        async def opened() -> RedisBatcher:
            return RedisBatcher(url=redis_url, timeout_ms=5000)

        batcher = loop.run_until_complete(opened())
        store = RedisReservationStore(batcher)
        try:
            run_state_machine_as_test(  # its type says "a class"; it calls whatever it is given
                lambda: EngineMachine(client, store, loop),  # type: ignore[arg-type]
                settings=profile,
            )
        finally:
            loop.run_until_complete(batcher.close())
            loop.close()
