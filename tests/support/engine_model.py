"""What the engine should do, said again in plain Python: no Redis, no scripts, no records.

Time is counted in steps of 20 minutes; ``Model.step`` begins a new minute. Only a token bucket sees
the real time between steps too, so its level is known as a range.
"""

import time
from dataclasses import dataclass, field

from extproc.core.buckets import Bucket, BucketKind, Period, Unit
from extproc.core.reservations import Knowledge, Source
from tests.support.engine import minute, quota, sliding, slots, token_bucket

STEP_MS = 20 * 60_000
WINDOW_STEPS = 3  # a sliding window: an hour
LEASE_MS = 50 * 60_000  # so a lease lasts two steps, and not three
LEASE_STEPS = 3
REFILL = 3  # a minute
INPUT_PRICE, OUTPUT_PRICE = 2_000_000, 5_000_000

LIMITS: tuple[Bucket, ...] = (
    minute("m-total", Unit.TOTAL, 400),
    minute("m-requests", Unit.REQUESTS, 5),
    minute("m-shadow", Unit.OUTPUT, 50, enforced=False),
    sliding("w-total", Unit.TOTAL, 700, window_ms=WINDOW_STEPS * STEP_MS),
    sliding("w-requests", Unit.REQUESTS, 8, window_ms=WINDOW_STEPS * STEP_MS),
    token_bucket("b-total", Unit.TOTAL, REFILL, capacity=500),
    slots("slots", 3),
    quota("q-day", Unit.TOTAL, 1500),
    quota("q-cost", Unit.COST, 6000, period=Period.MONTH),
    quota("q-record", Unit.INPUT, 100, refuses=False),
    quota("q-cycle", Unit.OUTPUT, 2500, period=Period.CYCLE, period_id="c1"),
)
DAY_MS = 86_400_000
CYCLE_KEPT_MS = 90 * DAY_MS

Amounts = dict[Unit, int]


def amounts_of(input_tokens: int, output_tokens: int, *, requests: int = 1) -> Amounts:
    """What so many tokens are in every unit; the prices are whole micro-USD a token."""
    return {
        Unit.REQUESTS: requests,
        Unit.SLOT: 1,
        Unit.INPUT: input_tokens,
        Unit.OUTPUT: output_tokens,
        Unit.TOTAL: input_tokens + output_tokens,
        Unit.COST: (input_tokens * INPUT_PRICE + output_tokens * OUTPUT_PRICE) // 1_000_000,
    }


@dataclass
class Entry:
    """One reservation as the model remembers it."""

    taken: Amounts
    charged: Amounts
    minute: int
    deadline: int
    rank: int = 0
    released: bool = False
    source: Source = Source.METERING
    in_history: bool = False


@dataclass
class Model:
    """Every counter as a sum over reservations; nothing is moved about."""

    step: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    windows: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    answers: list[tuple[str, int]] = field(default_factory=list)
    leases: dict[str, int] = field(default_factory=dict)
    low: float = 500.0
    high: float = 500.0
    seen_at: float = field(default_factory=time.monotonic)

    def pass_step(self) -> None:
        """Twenty minutes later."""
        self.step += 1
        self._refill(REFILL * STEP_MS / 60_000)

    def _refill(self, gained: float = 0.0) -> None:
        now = time.monotonic()
        jitter = (now - self.seen_at) * REFILL / 60 + 0.001
        self.seen_at = now
        self.low = min(500.0, self.low + gained)
        self.high = min(500.0, self.high + gained + jitter)

    def window(self, limit: Bucket) -> dict[str, int]:
        """Amounts in a sliding window by id."""
        return {
            rid: amount
            for rid, (entered, amount) in self.windows.get(limit.label, {}).items()
            if self.step < entered + WINDOW_STEPS
        }

    def used(self, limit: Bucket) -> tuple[int, int]:
        """Least and most that a counter can have, what is held included."""
        self._refill()
        match limit.kind:
            case BucketKind.MINUTE:
                used = self.minute_used(limit, self.step)
            case BucketKind.SLIDING:
                used = sum(self.window(limit).values())
            case BucketKind.SLOTS:
                used = len(self.holders())
            case BucketKind.QUOTA:
                used = sum(self.quota(limit))
            case _:
                # Whole tokens count, and rounding millionths takes one at most.
                return int(500 - self.high - 0.0001), int(500.9999 - self.low)
        return used, used

    def minute_used(self, limit: Bucket, minute_step: int) -> int:
        """What a minute's counter has."""
        return sum(
            entry.charged[limit.unit]
            for entry in self.entries.values()
            if entry.minute == minute_step
        )

    def holders(self) -> set[str]:
        """Who holds a lease."""
        return {rid for rid, ends in self.leases.items() if self.step < ends}

    def quota(self, limit: Bucket) -> tuple[int, int]:
        """Used and held."""
        used = sum(e.charged[limit.unit] for e in self.entries.values() if e.rank)
        held = sum(e.taken[limit.unit] for e in self.entries.values() if not e.rank)
        return used, held

    def refusals(self, wanted: Amounts) -> tuple[set[str], set[str]]:
        """Labels that must refuse, and labels that may."""
        must, may = set(), set()
        for limit in LIMITS:
            least, most = self.used(limit)
            if limit.enforced and limit.refuses:
                size = limit.capacity or limit.limit
                if least + wanted[limit.unit] > size:
                    must.add(limit.label)
                if most + wanted[limit.unit] > size:
                    may.add(limit.label)
        return must, may

    def take(self, rid: str, wanted: Amounts) -> None:
        """An admission."""
        self.entries[rid] = Entry(
            taken=wanted, charged=wanted, minute=self.step, deadline=self.step + LEASE_STEPS
        )
        for limit in LIMITS:
            if limit.kind is BucketKind.SLIDING:
                self.windows.setdefault(limit.label, {})[rid] = (self.step, wanted[limit.unit])
        self.leases[rid] = self.step + LEASE_STEPS
        self._drain(wanted[Unit.TOTAL])

    def end(self, rid: str, rank: int, charged: Amounts, *, released: bool, source: Source) -> str:
        """Settle or release; the status that the engine should give."""
        entry = self.entries.get(rid)
        if entry is None:
            if rid in self.tombstones:
                return "noop"
            if released:
                self.tombstones.add(rid)
            return "missing"
        if source is Source.REAPER and not entry.rank and entry.deadline > self.step:
            return "noop"  # renewed since the reaper looked
        # Only the admission can be wrong about what it gave back by itself.
        is_overturned = (
            rank == entry.rank == Knowledge.GUESSED
            and (entry.released, entry.source) == (True, Source.ADMISSION)
            and source is not Source.ADMISSION
            and charged[Unit.TOTAL] > 0
        )
        if rank <= entry.rank and not is_overturned:
            return "noop"
        if charged[Unit.TOTAL] == 0:
            # What was undone is not counted again by whoever only knows that nothing was used.
            requests = min(charged[Unit.REQUESTS], entry.charged[Unit.REQUESTS])
            charged = {**charged, Unit.REQUESTS: requests}
        status = "improved" if entry.rank else "applied"
        self._drain(charged[Unit.TOTAL] - entry.charged[Unit.TOTAL])
        for limit in LIMITS:
            window = self.windows.get(limit.label, {})
            if limit.kind is BucketKind.SLIDING and rid in window:
                if limit.unit is Unit.REQUESTS:
                    if charged[Unit.REQUESTS] < entry.charged[Unit.REQUESTS]:
                        del window[rid]
                else:
                    window[rid] = (window[rid][0], charged[limit.unit])
        self.leases.pop(rid, None)
        entry.charged, entry.rank = charged, rank
        entry.released, entry.source = released, source
        return status

    def learn(self, rid: str, model: str) -> None:
        """An answer goes into the history, once."""
        entry = self.entries[rid]
        if not entry.in_history:
            self.answers.append((model, entry.charged[Unit.OUTPUT]))
        entry.in_history = True

    def renew(self, rid: str) -> bool:
        """A long stream says that it is there."""
        entry = self.entries.get(rid)
        if entry is None or entry.rank:
            return False
        entry.deadline = self.leases[rid] = self.step + LEASE_STEPS
        return True

    def _drain(self, amount: int) -> None:
        self._refill()
        self.low = min(500.0, self.low - amount)
        self.high = min(500.0, self.high - amount)
