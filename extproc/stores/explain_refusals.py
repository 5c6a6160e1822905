"""`explain` for refused requests: what the scripts noted of them (lua/include/refusals.lua).

A refusal takes nothing and leaves no record, only a note in a short list of its root.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from extproc.core.buckets import BucketKind
from extproc.core.explain import Asked, RefusalReport, RefusingLimit
from extproc.core.explain_rules import moment_of, period_name
from extproc.core.limits import MAX_LIMIT
from extproc.core.subjects import Subject, read_subject
from extproc.stores import keys
from extproc.stores.bucket_codec import SIMPLE_RPM, SIMPLE_TPM, NamedCounter, decode
from extproc.stores.client import RedisClient
from extproc.stores.explain_lookups import SPOILT, is_request, policy_versions, read_now_ms
from extproc.stores.record_words import lengthen
from extproc.stores.sql import Database

MOST_FOUND = 20
_ROOTS_AT_ONCE = 100
_SIMPLE = {"rpm": SIMPLE_RPM, "tpm": SIMPLE_TPM}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """A refusal as Redis keeps it. ``limits``: text, retry ms (-1: never), limit, left, burst
    of each."""

    root: str
    at: int
    reservation_id: str
    request_id: str
    model: str
    asked: Asked
    limits: tuple[tuple[str, int, int, int, int | None], ...]
    counters: tuple[NamedCounter, ...]
    more: int
    who: Subject


async def explain_refusals(
    redis: RedisClient,
    database: Database,
    *,
    wanted_id: str,
    root: str | None = None,
    most: int = MOST_FOUND,
) -> tuple[RefusalReport, ...]:
    """The refusals of a reservation's or of Envoy's request id, the newest first.

    Without a root, the lists of all roots are read. One request id may be refused many times
    (clients that try again may keep it). Empty: none is known (any more). Raises
    StoreUnavailableError.
    """
    found: list[_Note] = []
    async for roots in _pages_of_roots(redis, root):
        found += [
            note
            for note in await _notes(redis, roots)
            if note.reservation_id == wanted_id or is_request(wanted_id, note.request_id)
        ]
    return await _reports(redis, database, found, most=most, subjects={})


async def last_refusals(
    redis: RedisClient,
    database: Database,
    *,
    roots: Iterable[str],
    most: int,
    subjects: Mapping[tuple[str, str], str],
) -> tuple[RefusalReport, ...]:
    """The last ``most`` refusals of ``roots``, whoever was refused, the newest first.

    ``subjects``: what to show for a counter, by its root and what a record keeps of it. Raises
    StoreUnavailableError.
    """
    found = await _notes(redis, roots)
    return await _reports(redis, database, found, most=most, subjects=subjects)


async def _pages_of_roots(redis: RedisClient, root: str | None) -> AsyncIterator[Iterable[str]]:
    # Counters that all share note what they refuse at their own roots.
    for scan, key, width in (("SSCAN", keys.ROOTS, 1), ("ZSCAN", keys.ROOTS_ACROSS, 2)):
        if root is not None and key == keys.ROOTS:
            yield (root,)
            continue
        seen: set[str] = set()
        cursor = "0"
        while True:
            cursor, page = await redis.command(scan, key, cursor, "COUNT", _ROOTS_AT_ONCE)
            names = set(page[::width])
            yield names - seen
            seen.update(names)
            if cursor == "0":
                break


async def _notes(redis: RedisClient, roots: Iterable[str]) -> list[_Note]:
    names = tuple(roots)
    lists = await asyncio.gather(
        *(redis.command("LRANGE", keys.refusals(name), 0, -1) for name in names)
    )
    notes = [_note(name, text) for name, texts in zip(names, lists, strict=True) for text in texts]
    return [note for note in notes if note is not None]


def _note(root: str, text: str) -> _Note | None:
    """None for what another release may have written, and for what is spoilt."""
    try:
        plain = json.loads(text)
        at = int(plain["at"])
        # A request may ask for more than any limit allows.
        tokens = min(int(plain["tokens"]), MAX_LIMIT)
        limits = tuple(
            (
                lengthen(_SIMPLE.get(name, name)),
                int(wait),
                int(limit),
                int(left),
                int(burst[0]) if burst else None,
            )
            for name, wait, limit, left, *burst in plain["by"]
        )
        if not limits:
            return None
        for wait in (0, *(one[1] for one in limits)):
            moment_of(at + wait)
        who = read_subject(plain.get("who", ""))
        return _Note(
            root=root,
            at=at,
            reservation_id=str(plain["id"]),
            request_id=str(plain["request"]),
            model=str(plain["model"]),
            asked=Asked(
                tokens=tokens,
                output_tokens=tokens - min(int(plain["input"]), tokens),
                cost_micros=min(int(plain["cost"]), MAX_LIMIT),
                is_priced=who.is_priced,
            ),
            limits=limits,
            counters=tuple(decode(root, name) for name, *_ in limits),
            more=int(plain["more"]),
            who=who,
        )
    except SPOILT:
        return None


async def _reports(
    redis: RedisClient,
    database: Database,
    found: list[_Note],
    *,
    most: int,
    subjects: Mapping[tuple[str, str], str],
) -> tuple[RefusalReport, ...]:
    if not found:
        return ()
    now = moment_of(await read_now_ms(redis))
    newest = sorted(found, key=lambda note: note.at, reverse=True)[:most]
    return tuple([await _report(database, note, now=now, subjects=subjects) for note in newest])


async def _report(
    database: Database, note: _Note, *, now: datetime, subjects: Mapping[tuple[str, str], str]
) -> RefusalReport:
    at = moment_of(note.at)
    versions = await policy_versions(database, [counter.label for counter in note.counters], at)
    return RefusalReport(
        at=now,
        root=note.root,
        reservation_id=note.reservation_id,
        request_id=note.request_id,
        model=note.model,
        refused_at=at,
        asked=note.asked,
        limits=tuple(
            RefusingLimit(
                label=counter.label,
                version=versions.get(counter.label.partition("/")[0]),
                subject=subjects.get((note.root, text), counter.subject),
                algorithm=counter.kind,
                unit=counter.unit,
                period=_period(counter, note.at),
                asked=note.asked.amount(counter.unit),
                limit=limit,
                remaining=left,
                retry_after_ms=wait if wait >= 0 else None,
                frees_at=moment_of(note.at + wait) if wait >= 0 else None,
                burst=burst,
            )
            for counter, (text, wait, limit, left, burst) in zip(
                note.counters, note.limits, strict=True
            )
        ),
        more=note.more,
        subject=note.who.values,
        hidden=note.who.hidden,
    )


def _period(counter: NamedCounter, at: int) -> str:
    if counter.kind is BucketKind.MINUTE:
        return moment_of(at).strftime("%Y%m%d%H%M")
    if counter.kind is BucketKind.QUOTA:
        return period_name(counter.period, at, period_id=counter.period_id)
    return ""
