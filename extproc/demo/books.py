"""Two sets of books, and the difference between them.

Ours: reservation records and minute windows in Redis. The provider's: its journal of what it really
produced. They are joined by the request id that Envoy gives each request and passes to both.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import redis.asyncio

from extproc.demo.fake_provider import JournalEntry
from extproc.stores import keys

_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One reservation as Redis has it after (or before) its end."""

    root: str
    state: str
    minute: str
    outcome: str
    input_tokens: int
    reserved_tokens: int
    charged_tokens: int
    token_limit: int
    request_id: str


def chargeable_tokens(entry: JournalEntry) -> int:
    """What a request must be charged: nothing when the provider refused it or never answered, else
    its input and the output that was really written."""
    return entry.input_tokens + entry.output_tokens_produced if entry.status == _OK else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums of the tour. ``drift`` is in tokens, the others are requests or reservations."""

    admitted: int
    settled: int
    released: int
    open: int
    drift: int


class Books:
    """Reads both sets. ``services`` are the roots to look at."""

    def __init__(self, *, redis_url: str, provider_url: str, services: Iterable[str]) -> None:
        self._redis = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
        self._http = aiohttp.ClientSession(provider_url, trust_env=False)
        self._services = tuple(services)

    async def close(self) -> None:
        """Close both connections."""
        await self._http.close()
        await self._redis.aclose()

    async def journal(self) -> list[JournalEntry]:
        """The provider's entries, oldest first."""
        async with self._http.get("/_fake/journal") as response:
            return [JournalEntry(**entry) for entry in await response.json()]

    async def records(self) -> list[Record]:
        """All reservation records of the services."""
        found = []
        for root in self._services:
            async for key in self._redis.scan_iter(match=keys.reservation_prefix(root) + "*"):
                found.append(_record(root, await _hash(self._redis, key)))
        return found

    async def open_count(self) -> int:
        """Reservations that nobody has ended."""
        counts = [int(await self._redis.zcard(keys.pending(root))) for root in self._services]
        return sum(counts)

    async def windows(self) -> dict[tuple[str, str], int]:
        """Tokens taken, by service and minute, as the counters say."""
        counters = {}
        for root in self._services:
            prefix = keys.tpm_prefix(root)
            async for key in self._redis.scan_iter(match=prefix + "*"):
                counters[root, key.removeprefix(prefix)] = int(await self._redis.get(key) or 0)
        return counters

    async def seconds_left_in_minute(self) -> float:
        """By Redis' own clock, which is the one that names the windows."""
        seconds, micros = await self._redis.time()
        return 60.0 - (int(seconds) % 60 + int(micros) / 1_000_000)

    async def totals(self) -> Totals:
        """Everything added up, now."""
        records = await self.records()
        states = [record.state for record in records]
        return Totals(
            admitted=len(records),
            settled=states.count("SETTLED") + states.count("RECONCILING"),
            released=states.count("RELEASED"),
            open=max(await self.open_count(), states.count("RESERVED")),
            drift=drift(await self.windows(), records, await self.journal()),
        )


def drift(
    windows: dict[tuple[str, str], int], records: list[Record], journal: list[JournalEntry]
) -> int:
    """Sum over services and minutes of |counter - what the provider's journal says is due|.

    The journal decides the amount, the record only in which service and minute it is due. A journal
    entry without a record was served for nothing, and counts whole.
    """
    due: dict[tuple[str, str], int] = defaultdict(int)
    homeless = 0
    by_request = {record.request_id: record for record in records}
    for entry in journal:
        record = by_request.get(entry.request_id)
        if record is None:
            homeless += chargeable_tokens(entry)
        else:
            due[record.root, record.minute] += chargeable_tokens(entry)
    places = windows.keys() | due.keys()
    return homeless + sum(abs(windows.get(place, 0) - due.get(place, 0)) for place in places)


async def _hash(client: redis.asyncio.Redis, key: str) -> dict[str, str]:
    fields: Any = await client.hgetall(key)
    return dict(fields)


def _record(root: str, fields: dict[str, str]) -> Record:
    return Record(
        root=root,
        state=fields["state"],
        minute=fields["minute"],
        outcome=fields.get("outcome", ""),
        input_tokens=int(fields.get("input", 0)),
        reserved_tokens=int(fields["reserved"]),
        charged_tokens=int(fields["charged"]),
        token_limit=int(fields.get("tpm", 0)),
        request_id=fields.get("request_id", ""),
    )
