"""`explain` for a reservation: what its record says. Refused requests leave no record."""

import asyncio
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, or_, select

from extproc.core.buckets import BucketKind, Period, Unit
from extproc.core.explain import ReservationReport, TakenReport
from extproc.core.explain_rules import cost_of, moment_of, period_name, policy_word
from extproc.core.ids import is_valid_id
from extproc.core.policies import ANY, SERVICE_LIMIT, Dimension, Scope
from extproc.stores import keys
from extproc.stores.client import RedisClient
from extproc.stores.explain import read_now_ms
from extproc.stores.sql import Database
from extproc.stores.tables import limit_policy

MOST_RECORDS = 20
# How long an ended record is kept (lua/include/ending.lua), and of a request id (the store's note).
_RECORD_TTL_MS = 900_000
_MAX_NOTE_CHARACTERS = 256

_KNOWLEDGE = {
    0: "nothing yet: still open",
    1: "guessed: nobody saw what was used",
    2: "counted: the answer's text, by our tokenizer",
    3: "known: the provider's own usage, or certainly nothing was used",
}
# The reverse of stores/bucket_codec.py.
_KINDS = {
    "m": BucketKind.MINUTE,
    "w": BucketKind.SLIDING,
    "b": BucketKind.BUCKET,
    "s": BucketKind.SLOTS,
    "q": BucketKind.QUOTA,
}
_UNITS = {
    "r": Unit.REQUESTS,
    "i": Unit.INPUT,
    "o": Unit.OUTPUT,
    "t": Unit.TOTAL,
    "c": Unit.COST,
    "s": Unit.SLOT,
}
_PERIODS = {"d": Period.DAY, "m": Period.MONTH, "c": Period.CYCLE}


async def explain_reservation(
    redis: RedisClient,
    database: Database,
    *,
    root: str,
    wanted_id: str,
    most: int = MOST_RECORDS,
) -> tuple[ReservationReport, ...]:
    """The record of reservation ``wanted_id``, or those of Envoy's request of that id, at ``root``.

    A request id is found by looking at every key of Redis, a page at a time: for people, not for
    programs. One request id may have several records (meshes send it with many calls); ``most`` are
    looked for. Empty: there is none (any more). Raises StoreUnavailableError.
    """
    ids = [wanted_id]
    if not is_valid_id(wanted_id) or not await _exists(redis, root, wanted_id):
        ids = await _ids_of_request(redis, root, wanted_id, most=most)
    reports = [await _report(redis, database, root, each) for each in ids]
    return tuple(report for report in reports if report is not None)


async def _exists(redis: RedisClient, root: str, reservation_id: str) -> bool:
    return bool(await redis.command("EXISTS", keys.reservation(root, reservation_id)))


async def _ids_of_request(
    redis: RedisClient, root: str, request_id: str, *, most: int
) -> list[str]:
    prefix = keys.reservation_prefix(root)
    # As it was kept.
    wanted = request_id[:_MAX_NOTE_CHARACTERS].encode("utf-8", "replace").decode()
    found: dict[str, None] = {}
    async for names in redis.scan(prefix + "*"):
        notes = await asyncio.gather(*(redis.command("HGET", n, "request_id") for n in names))
        for name, note in zip(names, notes, strict=True):
            if note == wanted:
                found[name.removeprefix(prefix)] = None  # SCAN may name a key twice
        if len(found) >= most:
            break
    return list(found)[:most]


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
    labels, versions = taken.labels(), {}
    if at is not None and labels:
        names = sorted({label.partition("/")[0] for label in labels} - {SERVICE_LIMIT})
        versions = await database.run(
            lambda connection: _versions(connection, names, moment_of(at))
        )
    forgotten = now + ttl if ttl > 0 else None
    # An end gives the record its last life, unless it is the note of a release without a reserve.
    ended = None if is_open or at is None or forgotten is None else forgotten - _RECORD_TTL_MS
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
    )


def _prices(record: dict[str, str]) -> tuple[int, int] | None:
    found = record.get("prices")
    if found is None:
        return None
    input_price, output_price = found.split()
    return int(input_price), int(output_price)


def _versions(connection: Connection, names: list[str], at: datetime) -> dict[str, int]:
    """The version of each policy that was in force at ``at``."""
    columns, moment = limit_policy.c, at.replace(tzinfo=None, microsecond=0)
    query = (
        select(columns.name, columns.version)
        .where(
            columns.name.in_(names),
            columns.effective_from <= moment,
            or_(columns.effective_to.is_(None), columns.effective_to > moment),
        )
        .order_by(columns.version)
    )
    return {row.name: row.version for row in connection.execute(query)}


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
        self._entries = list(self._read())

    def _read(self) -> list[tuple[str, str, BucketKind, Unit, str]]:
        record, root = self._record, self._root
        if not record.get("minute"):
            return []
        if "chunks" not in record:  # a simple root
            whole = "mr|rate:rpm:{}:;mt|rate:tpm:{}:"
        else:
            chunks = range(1, int(record["chunks"]) + 1)
            whole = "".join(record.get(f"b{index}", "") for index in chunks)
        return [self._entry(root, text) for text in whole.split(";") if text]

    def _entry(self, root: str, text: str) -> tuple[str, str, BucketKind, Unit, str]:
        head, _, tail = text.partition("|")
        kind, unit = _KINDS[head[0]], _UNITS[head[1]]
        period = ""
        if kind is BucketKind.MINUTE:
            period = self._record["minute"]
        elif kind is BucketKind.QUOTA:
            at = int(self._record["at"])
            period = period_name(_PERIODS[head[2]], at, period_id=head[3:])
        key = tail.replace("{}", f"{{{root}}}")
        if key == keys.rpm_prefix(root):
            return f"{SERVICE_LIMIT}/{Dimension.RPM}", f"{Scope.SERVICE}:{root}", kind, unit, period
        if key == keys.tpm_prefix(root):
            label = f"{SERVICE_LIMIT}/{Dimension.TOTAL_TPM}"
            return label, f"{Scope.SERVICE}:{root}", kind, unit, period
        suffix = tail.removeprefix(":")
        if kind in (BucketKind.MINUTE, BucketKind.QUOTA):
            suffix = suffix.removesuffix(":")
        policy, _, rest = suffix.partition(".")
        dimension, _, subject = rest.partition(".")
        if ":" not in subject:
            subject = f"{subject}:{ANY}"
        return f"{policy}/{dimension}", subject, kind, unit, period

    def labels(self) -> list[str]:
        return [entry[0] for entry in self._entries]

    def reports(self, versions: dict[str, int]) -> tuple[TakenReport, ...]:
        return tuple(
            TakenReport(
                label=label,
                version=versions.get(label.partition("/")[0]),
                subject=subject,
                algorithm=kind,
                unit=unit,
                period=period,
                reserved=self.reserved[unit],
                charged=self._charged[unit],
                shadow_refused=index in self._shadow,
            )
            for index, (label, subject, kind, unit, period) in enumerate(self._entries, start=1)
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
