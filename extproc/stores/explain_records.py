"""`explain` for a reservation: what its record says. Refused requests leave none: see refusals."""

import asyncio
from typing import Any

from extproc.core.buckets import BucketKind, Unit
from extproc.core.explain import ReservationReport, TakenReport, Unreadable
from extproc.core.explain_rules import cost_of, moment_of, period_name, policy_word
from extproc.core.ids import is_valid_id
from extproc.core.reservations import Source, State
from extproc.stores import keys
from extproc.stores.bucket_codec import SIMPLE_RPM, SIMPLE_TPM, NamedCounter, decode
from extproc.stores.client import RedisClient
from extproc.stores.explain_lookups import (
    SPOILT,
    is_request,
    policy_versions,
    read_now_ms,
    unreadable,
)
from extproc.stores.sql import Database

MOST_RECORDS = 20
# How long an ended record is kept (lua/include/ending.lua).
_RECORD_TTL_MS = 900_000
# ... when it waits for people, or they have decided (lua/include/review.lua).
_REVIEW_TTL_MS = 604_800_000

_KNOWLEDGE = {
    0: "nothing yet: still open",
    1: "guessed: nobody saw what was used",
    2: "counted: the answer's text, by our tokenizer",
    3: "known: the provider's own usage, or certainly nothing was used",
}


async def explain_reservation(
    redis: RedisClient,
    database: Database,
    *,
    wanted_id: str,
    root: str | None = None,
    most: int = MOST_RECORDS,
) -> tuple[ReservationReport | Unreadable, ...]:
    """The record of reservation ``wanted_id``, or those of Envoy's request of that id.

    Without a reservation's ``root`` and id, it is found by looking at every key of Redis. One
    request id may have several records (meshes send it with many calls, and limits across roots
    have their own); ``most`` are looked for. Empty: there is none (any more). One that is
    spoilt is only named. Raises StoreUnavailableError.
    """
    if root is not None and is_valid_id(wanted_id) and await _exists(redis, root, wanted_id):
        ids = [(root, wanted_id)]
    else:
        ids = await _search(redis, wanted_id, root=root, most=most)
    reports = [await _report_or_name(redis, database, *each) for each in ids]
    return tuple(report for report in reports if report is not None)


async def _exists(redis: RedisClient, root: str, reservation_id: str) -> bool:
    return bool(await redis.command("EXISTS", keys.reservation(root, reservation_id)))


async def _search(
    redis: RedisClient, wanted: str, *, root: str | None, most: int
) -> list[tuple[str, str]]:
    """Root and id of the records."""
    pattern = keys.reservation_prefix("*" if root is None else root) + "*"
    found: dict[tuple[str, str], None] = {}
    async for names in redis.scan(pattern):  # a key may come twice
        notes = await asyncio.gather(*(redis.command("HGET", n, "request_id") for n in names))
        for name, note in zip(names, notes, strict=True):
            where, _, reservation_id = name.partition("{")[2].partition("}:")
            if reservation_id == wanted or (note and is_request(wanted, note)):
                found[where, reservation_id] = None
        if len(found) >= most:
            break
    return list(found)[:most]


async def _report_or_name(
    redis: RedisClient, database: Database, root: str, reservation_id: str
) -> ReservationReport | Unreadable | None:
    try:
        return await _report(redis, database, root, reservation_id)
    except SPOILT as error:
        return unreadable(root, reservation_id, error)


async def _report(
    redis: RedisClient, database: Database, root: str, reservation_id: str
) -> ReservationReport | None:
    name = keys.reservation(root, reservation_id)
    now, flat, ttl, score = await asyncio.gather(
        read_now_ms(redis),
        redis.command("HGETALL", name),
        redis.command("PTTL", name),
        redis.command("ZSCORE", keys.pending(root), reservation_id),
    )
    record: dict[str, str] = dict(zip(flat[::2], flat[1::2], strict=True))
    if not record:
        return None
    is_open = record.get("rank") == "0"
    at = int(record["at"]) if "at" in record else None
    prices = _prices(record)
    taken = _Taken(root, record)
    labels = taken.labels()
    versions = {} if at is None else await policy_versions(database, labels, moment_of(at))
    forgotten = now + ttl if ttl > 0 else None
    # An end gives the record its last life, unless it is the note of a release without a reserve.
    ended = None if is_open or at is None or forgotten is None else forgotten - _life_ms(record)
    return ReservationReport(
        at=moment_of(now),
        root=root,
        reservation_id=reservation_id,
        request_id=record.get("request_id", ""),
        wire_format=record.get("wire_format", ""),
        model=record.get("model", ""),
        state=record.get("state", ""),
        outcome=record.get("outcome", ""),
        source=record.get("source", ""),
        knowledge=_KNOWLEDGE.get(int(record.get("rank", 0)), ""),
        reserved_tokens=int(record.get("reserved", 0)),
        charged_tokens=int(record.get("charged", 0)),
        reserved_cost_micros=prices and taken.reserved[Unit.COST],
        charged_cost_micros=int(record.get("cost", 0)) if prices or "cost" in record else None,
        admitted_at=None if at is None else moment_of(at),
        deadline=None if score is None else moment_of(int(float(score))),
        ended_at=None if ended is None else moment_of(ended),
        forgotten_at=None if forgotten is None else moment_of(forgotten),
        policies=tuple(
            dict.fromkeys(
                policy_word(policy, versions.get(policy))
                for policy in (label.partition("/")[0] for label in labels)
            )
        ),
        taken=taken.reports(versions),
        usage_parts=record.get("parts", ""),
    )


def _life_ms(record: dict[str, str]) -> int:
    """How long a record that has ended is kept, from its end on."""
    waits = (record.get("state"), record.get("source")) == (State.RECONCILING, Source.REAPER)
    is_long = waits or record.get("source") == Source.OPERATOR
    return _REVIEW_TTL_MS if is_long else _RECORD_TTL_MS


def _prices(record: dict[str, str]) -> tuple[int, int] | None:
    found = record.get("prices")
    if found is None:
        return None
    input_price, output_price = found.split()
    return int(input_price), int(output_price)


class _Taken:
    """The counters of a record, as lua/include/correct.lua reads them."""

    def __init__(self, root: str, record: dict[str, str]) -> None:
        self._root = root
        self._record = record
        prices = _prices(record) or (0, 0)
        start, total = int(record.get("input", 0)), int(record.get("reserved", 0))
        spent_input = int(record.get("in", start))
        charged = int(record.get("charged", 0))
        is_open = record.get("rank") == "0"
        self.reserved = _amounts(start, total, cost=cost_of(start, total - start, prices))
        self._charged = _amounts(
            spent_input,
            charged,
            cost=int(record.get("cost", 0)),
            requests=int(record.get("requests", 1)),
            slots=int(is_open),
        )
        self._shadow = {int(index) for index in record.get("shadow", "").split()}
        self._counters = self._read()

    def _read(self) -> list[NamedCounter]:
        record = self._record
        if not record.get("minute"):
            return []
        if "chunks" not in record:
            texts = [SIMPLE_RPM, SIMPLE_TPM]
        else:
            count = int(record["chunks"])
            if count > len(record):
                raise ValueError(f"{count} chunks in {len(record)} fields")
            chunks = (record.get(f"b{index}", "") for index in range(1, count + 1))
            texts = "".join(chunks).split(";")
        return [decode(self._root, text) for text in texts if text]

    def _period(self, counter: NamedCounter) -> str:
        if counter.kind is BucketKind.MINUTE:
            return self._record["minute"]
        if counter.kind is BucketKind.QUOTA:
            at = int(self._record["at"])
            return period_name(counter.period, at, period_id=counter.period_id)
        return ""

    def labels(self) -> list[str]:
        return [counter.label for counter in self._counters]

    def reports(self, versions: dict[str, int]) -> tuple[TakenReport, ...]:
        return tuple(
            TakenReport(
                label=counter.label,
                version=versions.get(counter.label.partition("/")[0]),
                subject=counter.subject,
                algorithm=counter.kind,
                unit=counter.unit,
                period=self._period(counter),
                reserved=self.reserved[counter.unit],
                charged=self._charged[counter.unit],
                shadow_refused=index in self._shadow,
            )
            for index, counter in enumerate(self._counters, start=1)
        )


def _amounts(
    input_tokens: int, total: int, *, cost: int, requests: int = 1, slots: int = 1
) -> dict[Unit, Any]:
    return {
        Unit.REQUESTS: requests,
        Unit.INPUT: input_tokens,
        Unit.OUTPUT: total - input_tokens,
        Unit.TOTAL: total,
        Unit.COST: cost,
        Unit.SLOT: slots,
    }
