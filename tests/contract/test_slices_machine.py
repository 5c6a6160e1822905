"""Any order of takes, draws, ends and returns: what counters hold is what slices and records hold.

A model of its own beside that of ``test_engine_machine``: smaller, because what is drawn is an
ordinary reservation, and only how it comes about is looked at here.
"""

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import dataclass, replace
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

from extproc.core.buckets import Unit
from extproc.core.estimates import EstimatePlan
from extproc.core.reservations import Knowledge, Outcome, Settlement, Slip, Source, State
from extproc.core.slices import Drawing, SlicePlan, SliceRequest
from extproc.jobs.reaper import Reaper
from extproc.stores import keys
from extproc.stores.batcher import RedisBatcher
from extproc.stores.slice_store import SlicedReservationStore
from tests.support.engine import VERSION, Counters, cache_view, minute, quota
from tests.support.fakes import RecordingTelemetry
from tests.support.reservations import ROOT, Inspector, settlement
from tests.support.valkey import wait_for_quiet_minute

T = TypeVar("T")

_COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
_PROFILES = {
    "default": settings(_COMMON, max_examples=100, stateful_step_count=20),
    "long": settings(_COMMON, max_examples=5000, stateful_step_count=50),
}
PLAN = SlicePlan(share_permille=100, most_requests=6, most_tokens=900)
POLICIES = (
    minute("rpm", Unit.REQUESTS, 1000),
    minute("tpm", Unit.TOTAL, 100_000),
    quota("day", Unit.TOTAL, 1_000_000),
)
RESERVES, SPENT = st.integers(0, 400), st.tuples(st.integers(0, 90), st.integers(0, 500))
ENDS = st.sampled_from(
    [
        (Knowledge.GUESSED, Source.ENDING),
        (Knowledge.COUNTED, Source.METERING),
        (Knowledge.KNOWN, Source.METERING),
    ]
)
RELEASES = st.sampled_from(
    [(Knowledge.GUESSED, Source.ADMISSION), (Knowledge.KNOWN, Source.METERING)]
)


@dataclass
class Held:
    """What a slice or a record holds in the counters."""

    tokens: int
    requests: int
    rank: int = 0
    given_up: bool = False  # released by admission, as a guess


class SliceMachine(RuleBasedStateMachine):
    """Real scripts on the left, sums on the right."""

    slices: Bundle[str] = Bundle("slices")
    requests: Bundle[str] = Bundle("requests")

    def __init__(
        self,
        client: redis.Redis,
        store: SlicedReservationStore,
        loop: asyncio.AbstractEventLoop,
        *,
        is_simple: bool,
    ) -> None:
        super().__init__()
        self.client, self.store, self.loop, self.is_simple = client, store, loop, is_simple
        self.held: dict[str, Held] = {}
        self.records: dict[str, Held] = {}
        self.slips: dict[str, Slip] = {}
        self.overdue: set[str] = set()

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    @initialize(target=slices, overdue=st.booleans())
    def clean(self, overdue: bool) -> str:
        self.client.flushdb()
        self.client.sadd(keys.ROOTS, ROOT)
        wait_for_quiet_minute(self.client, seconds=3)
        if self.is_simple:
            Inspector(self.client).cache(rpm=1000, tpm=100_000)
        else:
            cache_view(self.client)
        self.minute = Inspector(self.client).minute()
        return self._take(overdue)

    @rule(target=slices, overdue=st.booleans())
    def take(self, overdue: bool) -> str:
        return self._take(overdue)

    def _take(self, overdue: bool) -> str:
        name = f"slice.{len(self.held)}"
        request = SliceRequest(
            slice_id=name,
            root=ROOT,
            model="gpt-4o",
            version="" if self.is_simple else VERSION,
            buckets=() if self.is_simple else POLICIES,
            least_tokens=10,
            overdue_ms=0 if overdue else 60_000,
            deadline_ms=60_000,
            estimate=EstimatePlan(),
        )
        taken = self.wait(self.store.take_slice(request, PLAN))
        assert taken is not None
        assert (taken.tokens, taken.requests) == (900, 6)
        self.held[name] = Held(taken.tokens, taken.requests)
        if overdue:
            self.overdue.add(name)
        return name

    @rule(target=requests, name=slices, reserved=RESERVES)
    def admit(self, name: str, reserved: int) -> str:
        """In the worker alone; it may believe in more than the slice still has."""
        rid = f"r{len(self.slips)}"
        self.slips[rid] = Slip(
            slice_id=name, input_tokens=min(10, reserved), reserved_tokens=reserved
        )
        return rid

    @rule(rids=st.lists(requests, min_size=1, max_size=4))
    def draw(self, rids: list[str]) -> None:
        """Some, or again, as after a lost reply; all of one slice."""
        name = self.slips[rids[0]].slice_id
        drawn = [rid for rid in rids if self.slips[rid].slice_id == name]
        drawings = [
            Drawing(
                reservation_id=rid,
                input_tokens=self.slips[rid].input_tokens,
                reserved_tokens=self.slips[rid].reserved_tokens,
            )
            for rid in drawn
        ]
        assert self.wait(self.store.draw(ROOT, name, drawings))
        for rid in drawn:
            self._drawn(rid)

    def _drawn(self, rid: str) -> None:
        if rid in self.records:
            return
        slip = self.slips[rid]
        kept = self.held[slip.slice_id]
        taken, counted = min(slip.reserved_tokens, kept.tokens), min(1, kept.requests)
        kept.tokens, kept.requests = kept.tokens - taken, kept.requests - counted
        self.records[rid] = Held(taken, counted)

    @rule(rid=requests, spent=SPENT, by=ENDS)
    def settle(self, rid: str, spent: tuple[int, int], by: tuple[Knowledge, Source]) -> None:
        rank, source = by
        end = settlement(rid, *spent, knowledge=rank, source=source)
        self._drawn(rid)
        record = self.records[rid]
        is_better = rank > record.rank
        is_overturned = record.given_up and rank == record.rank == 1 and sum(spent) > 0
        result = self.wait(self.store.settle(replace(end, slip=self.slips[rid])))
        if is_better or is_overturned:
            assert result.status in ("applied", "improved")
            record.requests = 1 if sum(spent) else min(1, record.requests)
            record.tokens, record.rank, record.given_up = sum(spent), int(rank), False
        else:
            assert result.status == "noop"

    @rule(rid=requests, by=RELEASES)
    def release(self, rid: str, by: tuple[Knowledge, Source]) -> None:
        self._drawn(rid)
        self._release(replace(self._released(rid, *by), slip=self.slips[rid]))

    @rule(rid=requests)
    def release_without_a_handle(self, rid: str) -> None:
        end = self._released(rid, Knowledge.KNOWN, Source.ENDING)
        if rid in self.records:
            self._release(end)
        else:
            self.wait(self.store.release(end))
            self.records[rid] = Held(0, 0, rank=3)

    def _released(self, rid: str, rank: Knowledge, source: Source) -> Settlement:
        end = settlement(rid, 0, 0, knowledge=rank, source=source, state=State.RELEASED)
        return replace(end, outcome=Outcome.NOT_FORWARDED)

    def _release(self, end: Settlement) -> None:
        record = self.records[end.reservation_id]
        self.wait(self.store.release(end))
        if end.knowledge > record.rank:
            record.tokens, record.rank = 0, int(end.knowledge)
            record.given_up = end.source is Source.ADMISSION

    @rule(name=slices)
    def give_back(self, name: str) -> None:
        self.wait(self.store.return_slice(ROOT, name))
        self.held[name] = Held(0, 0, rank=3)

    @rule()
    def reap(self) -> None:
        due = {name for name in self.overdue if not self.held[name].rank}
        assert self.wait(Reaper(self.store, RecordingTelemetry()).sweep()) == len(due)
        for name in due:
            self.held[name] = Held(0, 0, rank=3)

    @invariant()
    def books_balance(self) -> None:
        if not self.held:
            return
        everyone = [*self.held.values(), *self.records.values()]
        expected = sum(one.requests for one in everyone), sum(one.tokens for one in everyone)
        if self.is_simple:
            assert Inspector(self.client).used(self.minute) == expected
        else:
            rpm, tpm, day = POLICIES
            found = [self.client.get(bucket.key + self.minute) for bucket in (rpm, tpm)]
            assert tuple(int(str(value)) for value in found) == expected
            sums = Counters(self.client).quota(day, self.minute[:8])
            assert sums is not None
            assert sum(sums) == expected[1]
            assert min(sums) >= 0
        opened = {name for name, one in (*self.held.items(), *self.records.items()) if not one.rank}
        assert set(self.client.zrange(keys.pending(ROOT), 0, -1)) == opened
        assert Counters(self.client).without_ttl() == []


def _run(redis_url: str, *, is_simple: bool) -> None:
    loop = asyncio.new_event_loop()
    profile = _PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "default")]
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:

        async def opened() -> RedisBatcher:
            return RedisBatcher(url=redis_url, timeout_ms=5000)

        batcher = loop.run_until_complete(opened())
        store = SlicedReservationStore(batcher)
        try:
            run_state_machine_as_test(  # its type says "a class"; it calls whatever it is given
                lambda: SliceMachine(client, store, loop, is_simple=is_simple),  # type: ignore[arg-type]
                settings=profile,
            )
        finally:
            loop.run_until_complete(batcher.close())
            loop.close()


def test_any_order_keeps_the_books_of_a_simple_root(redis_url: str) -> None:
    _run(redis_url, is_simple=True)


def test_any_order_keeps_the_books_of_a_root_with_policies(redis_url: str) -> None:
    _run(redis_url, is_simple=False)
