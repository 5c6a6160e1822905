"""Any order of reserve, retry, settle, release, renew, reap and passing time, against a model.

2,000 sequences of 20 calls by default, about a minute; ``make machine``, which sets
``HYPOTHESIS_PROFILE=long``, runs 20,000 of 50.
"""

import asyncio
import os
import time
from collections import Counter
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

from extproc.core.buckets import Bucket, BucketKind, Period, Unit
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
    CYCLE_KEPT_MS,
    DAY_MS,
    INPUT_PRICE,
    LEASE_MS,
    LIMITS,
    OUTPUT_PRICE,
    STEP_MS,
    Model,
    amounts_of,
)
from tests.support.engine_time import Dump, dump, flood, pass_time
from tests.support.reservations import ROOT, settlement
from tests.support.valkey import wait_for_quiet_minute

T = TypeVar("T")

_COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
_PROFILES = {
    "default": settings(_COMMON, max_examples=2000, stateful_step_count=20),
    "long": settings(_COMMON, max_examples=20_000, stateful_step_count=50),
}

MODELS = st.sampled_from(["gpt-4o", "org/{m}"])
INPUTS, CAPS, NUMBERS = st.integers(0, 120), st.integers(0, 200), st.integers(0, 10_000)
By = tuple[Knowledge, Source]
# What each says of an end, guesses as often as all else.
ENDS = st.sampled_from(
    [
        (Knowledge.GUESSED, Source.ADMISSION),
        (Knowledge.GUESSED, Source.ENDING),
        (Knowledge.GUESSED, Source.REAPER),
        (Knowledge.COUNTED, Source.METERING),
        (Knowledge.COUNTED, Source.ADMISSION),
        (Knowledge.KNOWN, Source.METERING),
    ]
)
# A thousand is what look.lua takes out in one step; seldom, because every look then is long.
FLOODS = st.integers(1, 12).map(lambda number: 1000 if number == 12 else number)
WINDOWS = [limit for limit in LIMITS if limit.kind is BucketKind.SLIDING]
(CYCLE,) = [limit for limit in LIMITS if limit.period is Period.CYCLE]


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
        self.cycle_ends = self.cycle_seen = 0
        self.floods = 0

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    @initialize(target=reservations, first=st.tuples(INPUTS, CAPS, NUMBERS))
    def clean(self, first: tuple[int, int, int]) -> str:
        """An empty Redis with one reservation: most that can happen is about one."""
        self.client.flushdb()
        cache_view(self.client)
        wait_for_quiet_minute(self.client, seconds=3)
        self.model = Model()
        self.cycle_ends = dump(self.client).now + DAY_MS
        self.cycle_seen = 0
        self.reserve(*first)
        return f"r{first[2]}"

    @rule(target=reservations, input_tokens=INPUTS, cap=CAPS, number=NUMBERS)
    def reserve(self, input_tokens: int, cap: int, number: int) -> str:
        rid = f"r{number}"
        if rid in self.model.entries:
            return rid
        request = asking(
            *(replace(x, period_end_ms=self.cycle_ends) if x is CYCLE else x for x in LIMITS),
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
        if self.model.entries or isinstance(verdict, Admitted):
            self.cycle_seen = max(self.cycle_seen, self.cycle_ends)
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
        spent=st.tuples(st.integers(-3, 150), st.integers(-3, 400)),
        by=ENDS,
        model=MODELS,
        history=st.booleans(),
    )
    def settle(
        self,
        rid: str,
        spent: tuple[int, int],
        by: By,
        model: str,
        history: bool,
    ) -> None:
        (input_tokens, output_tokens), (rank, source) = spent, by
        end = settlement(
            rid, input_tokens, output_tokens, knowledge=rank, source=source, history=history
        )
        # Less than nothing is nothing.
        charged = amounts_of(max(0, input_tokens), max(0, output_tokens))
        self._end(replace(end, model=model), charged)

    @rule(rid=reservations, by=ENDS, undo=st.booleans())
    def release(self, rid: str, by: By, undo: bool) -> None:
        rank, source = by
        end = settlement(rid, knowledge=rank, source=source, state=State.RELEASED)
        self._end(replace(end, undo=undo), amounts_of(0, 0, requests=0 if undo else 1))

    @rule(asked=st.tuples(INPUTS, CAPS, NUMBERS), first=ENDS, second=ENDS, released=st.booleans())
    def end_at_once_and_again(
        self, asked: tuple[int, int, int], first: By, second: By, released: bool
    ) -> None:
        """Two who speak of one request, as when a client leaves while it is admitted."""
        rid = f"r{asked[2]}"
        self.reserve(*asked)
        if released:
            self.release(rid=rid, by=first, undo=False)
        else:
            self.settle(rid=rid, spent=(1, 2), by=first, model="gpt-4o", history=False)
        self.settle(rid=rid, spent=(3, 4), by=second, model="gpt-4o", history=False)

    def _end(self, end: Settlement, charged: dict[Unit, int]) -> None:
        released = end.state is State.RELEASED
        expected = self.model.end(
            end.reservation_id,
            int(end.knowledge),
            charged,
            released=released,
            source=end.source,
        )
        if end.writes_history and expected in ("applied", "improved"):
            self.model.learn(end.reservation_id, end.model)
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
            self.release(rid=rid, by=(Knowledge.KNOWN, Source.ENDING), undo=False)

    @rule(limit=st.sampled_from([*WINDOWS, CYCLE]), number=FLOODS)
    def meanwhile(self, limit: Bucket, number: int) -> None:
        """What has left a window makes no difference, or a contract is prolonged."""
        if limit is CYCLE:
            self.cycle_ends += DAY_MS
            return
        names = [limit.key] if limit.unit is Unit.REQUESTS else [limit.key, keys.amounts(limit.key)]
        self.floods += 1
        name = f"old{self.floods}-"
        flood(self.client, names, number, window_ms=limit.window_ms, name=name)

    @rule()
    def pass_time(self) -> None:
        past = f"past{self.model.step:08d}"
        pass_time(self.client, STEP_MS, minute=self._minute(), past=past)
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
        found = dump(self.client)
        lasting = {key for key, life in found.lives.items() if life < 0}
        assert lasting <= {keys.ROOTS}
        for limit in LIMITS:
            self._check(limit, found)
        opened = {rid for rid, entry in self.model.entries.items() if not entry.rank}
        assert set(found.hash(keys.pending(ROOT))) == opened
        self._check_lives(found)
        self._check_history(found)

    def _check(self, limit: Bucket, found: Dump) -> None:
        model = self.model
        if limit.kind is BucketKind.MINUTE:
            used = {
                key.removeprefix(limit.key): int(content[0])
                for key, content in found.beginning(limit.key).items()
            }
            steps = {entry.minute for entry in model.entries.values()}
            assert sorted(used.values()) == sorted(model.minute_used(limit, s) for s in steps)
            for name, amount in used.items():
                step = int(name[4:]) if name.startswith("past") else model.step
                assert amount == model.minute_used(limit, step) >= 0
        elif limit.kind is BucketKind.QUOTA:
            fields = [found.hash(key) for key in found.beginning(limit.key)]
            used_held = (
                sum(int(f.get("used", 0)) for f in fields),
                sum(int(f.get("held", 0)) for f in fields),
            )
            assert used_held == model.quota(limit)
        elif limit.kind is BucketKind.SLOTS:
            assert found.alive(limit.key, 0) == model.holders()
        elif limit.kind is BucketKind.SLIDING:
            alive = found.alive(limit.key, limit.window_ms)
            assert alive == set(model.window(limit))
            if limit.unit is not Unit.REQUESTS:
                amounts = {rid: int(n) for rid, n in found.hash(keys.amounts(limit.key)).items()}
                assert amounts.pop("sum", 0) == sum(amounts.values())
                assert set(amounts) == set(found.hash(limit.key))
                assert {rid: amounts[rid] for rid in alive} == model.window(limit)

    def _check_lives(self, found: Dump) -> None:
        """What a record took can be corrected as long as there is the record."""
        records = [found.lives[keys.reservation(ROOT, rid)] for rid in self.model.entries]
        for limit in LIMITS:
            if records and limit.kind in (BucketKind.BUCKET, BucketKind.QUOTA):
                (life,) = [found.lives[key] for key in found.beginning(limit.key)]
                assert life >= max(records)
                if limit is CYCLE:
                    assert abs(found.now + life - self.cycle_seen - CYCLE_KEPT_MS) <= 1

    def _check_history(self, found: Dump) -> None:
        written: Counter[tuple[str, str]] = Counter()
        for model, output in self.model.answers:
            for prefix in (keys.output_prefix(ROOT), keys.output_model_prefix(ROOT, model)):
                written[prefix, "count"] += 1
                written[prefix, "output_tokens"] += output
        kept: Counter[tuple[str, str]] = Counter()
        for key in found.beginning(keys.output_prefix(ROOT)):
            prefix, _, minute = key.rpartition(":")
            for name, amount in found.hash(key).items() if minute.isdigit() else ():
                if not name.startswith("h"):
                    kept[prefix + ":", name] += int(amount)
        assert kept == written


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
