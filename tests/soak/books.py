"""The soak's books: every reservation and every minute's counter, against the provider's journal.

Redis forgets minutes after two and reservations after fifteen, so both are read as the run goes on:
a minute's counters once it is over, and its reservations until they have ended.
"""

import json
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import redis

from extproc.demo.books import chargeable_tokens
from extproc.demo.fake_provider import JournalEntry
from tests.soak.kinds import KINDS

# Reservations read at once.
_BATCH = 500
# A counter and its reservations are read one after the other: what ended in between, again.
_LOOKS = 4
# Of two of the provider's chunks.
_MOST_CUT_TOKENS = 8
_OPEN = "RESERVED"


@dataclass(slots=True)
class Findings:
    """``drift``: tokens that are wrong, each place with a line in ``faults``. ``allowed``: what
    requests that nobody could follow to their end were charged beside what was produced, by kind:
    (requests, tokens too many, tokens too few). ``late``: of answers whose copies (profile
    ``observe``) came too late to a server that stood still, so that a guess stands."""

    reservations: int = 0
    journal: int = 0
    windows: int = 0
    drift: int = 0
    faults: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    allowed: dict[str, list[int]] = field(default_factory=dict)

    def wrong(self, tokens: int, what: str) -> None:
        self.drift += abs(tokens)
        self.faults.append(what)


def _held(record: dict[str, str]) -> int:
    """What a reservation holds of its minute now."""
    return int(record["reserved"] if record["state"] == _OPEN else record["charged"])


def _root_of(name: str) -> str:
    return name.partition("{")[2].partition("}")[0]


class SoakBooks:
    """Reads while the soak runs; ``close`` compares."""

    def __init__(self, client: "redis.Redis", provider_url: str) -> None:
        self._redis = client
        self._provider_url = provider_url
        self._records: dict[str, dict[str, str]] = {}
        self._settled: set[str] = set()  # not looked at again
        self.found = Findings()

    def read(self, *, minute: str | None = None) -> None:
        """Read the reservations that are new or may still change, and the last minute's counters
        (call it about once a minute, in its second half). ``minute`` "*": of all that are left."""
        minute = minute or self._last_minute()
        for _ in range(_LOOKS):
            before = self._windows(minute)
            self._read_records()
            wrong = self._wrong_windows(before)
            # Only what differs in every look is wrong.
            if not wrong:
                break
        for (root, minute), (counter, due) in wrong.items():
            self.found.wrong(
                counter - due, f"{root} {minute}: the counter says {counter}, reservations {due}"
            )
        self.found.windows += len(before)
        self._forget_settled()

    def second(self) -> int:
        """Of the minute, by Redis' clock."""
        now: Any = self._redis.time()
        return int(now[0]) % 60

    def _last_minute(self) -> str:
        now: Any = self._redis.time()
        return datetime.fromtimestamp(int(now[0]) - 60, tz=UTC).strftime("%Y%m%d%H%M")

    def _windows(self, minute: str) -> dict[tuple[str, str], int]:
        names = list(self._redis.scan_iter(f"rate:tpm:*:{minute}", count=1000))
        values: Any = self._redis.mget(names) if names else []
        found = {}
        for name, value in zip(names, values, strict=True):
            found[_root_of(name), name.rpartition(":")[2]] = int(value or 0)
        return found

    def _read_records(self) -> None:
        names = set(self._redis.scan_iter("resv:*", count=1000)) - self._settled
        ordered = sorted(names)
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            pipe = self._redis.pipeline(transaction=False)
            for name in batch:
                pipe.hgetall(name)
            for name, record in zip(batch, pipe.execute(), strict=True):
                if "minute" in record:  # a mark of a release that came first has none
                    self._records[name] = record

    def _wrong_windows(
        self, counters: dict[tuple[str, str], int]
    ) -> dict[tuple[str, str], tuple[int, int]]:
        due: Counter[tuple[str, str]] = Counter()
        for name, record in self._records.items():
            due[_root_of(name), record["minute"]] += _held(record)
        return {
            place: (counter, due[place])
            for place, counter in counters.items()
            if counter != due[place]
        }

    def _forget_settled(self) -> None:
        """What was admitted two minutes ago and has ended is not read again."""
        minute = self._last_minute()
        for name, record in self._records.items():
            if record["state"] != _OPEN and record["minute"] < minute:
                self._settled.add(name)

    def journal(self) -> list[JournalEntry]:
        """All that the provider did."""
        with urllib.request.urlopen(f"{self._provider_url}/_fake/journal") as response:
            return [JournalEntry(**entry) for entry in json.load(response)]

    def close(self) -> Findings:
        """Compare everything that was read with the journal."""
        self.read(minute="*")
        compare(self._records.values(), self.journal(), self.found)
        return self.found


def compare(
    records: Iterable[dict[str, str]], journal: Iterable[JournalEntry], found: Findings
) -> None:
    """Every request's charge against what the provider produced, into ``found``."""
    entries: dict[str, JournalEntry] = {entry.request_id: entry for entry in journal}
    found.journal = len(entries)
    allowed: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    seen = set()
    for record in records:
        found.reservations += 1
        request_id = record.get("request_id", "")
        seen.add(request_id)
        entry = entries.get(request_id)
        charged, due = _held(record), 0 if entry is None else chargeable_tokens(entry)
        if record["state"] == _OPEN:
            found.wrong(charged, f"{request_id}: still open")
        elif charged != due and may_differ(record, entry, charged=charged, due=due):
            tally = allowed[entry.label if entry else f"unseen/{record.get('outcome')}"]
            tally[0] += 1
            tally[1] += max(0, charged - due)
            tally[2] += max(0, due - charged)
        elif charged != due and is_late_copy(record, entry):
            found.late.append(f"{request_id}: charged {charged}, produced {due}")
        elif charged != due:
            label = entry.label if entry else "-"
            found.wrong(
                charged - due,
                f"{request_id} {label} {record.get('outcome')}: charged {charged}, produced {due}",
            )
    for request_id in entries.keys() - seen:
        due = chargeable_tokens(entries[request_id])
        if due:
            found.wrong(due, f"{request_id} {entries[request_id].label}: served for nothing")
    found.allowed = dict(allowed)


def may_differ(
    record: dict[str, str], entry: JournalEntry | None, *, charged: int, due: int
) -> bool:
    """Whether a charge may be another than what was produced: the client left, or Envoy alone saw
    the answer break, and the charge is neither below what passed nor above any reason."""
    if entry is None:
        # Envoy had begun to send it when the client left.
        return record.get("outcome") == "client_gone" and charged <= int(record["reserved"])
    profile, _, name = entry.label.partition("/")
    if name == "broken" and profile == "inline":
        # When its upstream breaks, Envoy drops the chunk that it was about to hand to us, and with
        # it to the client. Seen where four programs wait for two cores: 28 of 540.
        return 0 < due - charged <= _MOST_CUT_TOKENS
    kind = KINDS.get(name)
    if kind is None or profile not in kind.guess:
        return False
    if record.get("outcome") == "not_forwarded":
        return charged == 0
    return entry.input_tokens <= charged <= max(int(record["reserved"]), due)


def is_late_copy(record: dict[str, str], entry: JournalEntry | None) -> bool:
    """Whether a copied answer did not reach the server whole, and its end says so. Envoy waits for
    nobody in this profile, and ends a copy some seconds behind the answer."""
    is_copied = entry is not None and entry.label.startswith("observe/")
    return is_copied and record.get("rank") in ("1", "2")
