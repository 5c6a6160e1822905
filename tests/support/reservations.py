"""Short ways to say reserve, settle and release in tests, and to look at what they did."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis

from extproc.core.ids import new_reservation_id
from extproc.core.limits import ServiceLimit
from extproc.core.reservations import (
    Knowledge,
    Outcome,
    ReserveRequest,
    Settlement,
    Source,
    State,
)
from extproc.stores import keys

ROOT = "svc-1"


def request(
    *,
    rid: str | None = None,
    root: str = ROOT,
    input_tokens: int = 10,
    cap: int | None = None,
    default: int = 100,
    deadline_ms: int = 60_000,
    limit: ServiceLimit | None = None,
    model: str = "gpt-4o",
    request_id: str = "req-1",
) -> ReserveRequest:
    """A reserve call with a fresh id."""
    return ReserveRequest(
        reservation_id=rid or new_reservation_id(),
        root=root,
        input_tokens=input_tokens,
        output_cap_tokens=cap,
        default_output_tokens=default,
        deadline_ms=deadline_ms,
        wire_format="openai_chat",
        model=model,
        request_id=request_id,
        limit=limit,
    )


def settlement(
    rid: str,
    input_tokens: int = 10,
    output_tokens: int = 20,
    *,
    root: str = ROOT,
    knowledge: Knowledge = Knowledge.KNOWN,
    outcome: Outcome = Outcome.COMPLETE,
    source: Source = Source.METERING,
    state: State = State.SETTLED,
    history: bool = False,
) -> Settlement:
    """The end of a reservation; by default a plain, known success."""
    return Settlement(
        reservation_id=rid,
        root=root,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        knowledge=knowledge,
        outcome=outcome,
        source=source,
        state=state,
        writes_history=history,
    )


@dataclass
class Inspector:
    """Looks at (and sets up) the keys of one root."""

    client: redis.Redis
    root: str = ROOT

    def cache(self, rpm: int, tpm: int, *, status: int = 1) -> None:
        """Put limits into the cache, as a backfill would."""
        self.client.hset(keys.config(self.root), mapping={"rpm": rpm, "tpm": tpm, "status": status})
        self.client.expire(keys.config(self.root), 600)

    def minute(self, back: int = 0) -> str:
        """Name of the minute ``back`` minutes ago, by Redis' clock but Python's calendar."""
        seconds = int(self.client.time()[0]) - 60 * back
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d%H%M")

    def used(self, minute: str | None = None) -> tuple[int | None, int | None]:
        """Requests and tokens in a minute's windows; None where there is no key."""
        name = minute or self.minute()
        values = [
            self.client.get(keys.rpm_prefix(self.root) + name),
            self.client.get(keys.tpm_prefix(self.root) + name),
        ]
        requests, tokens = (None if value is None else int(str(value)) for value in values)
        return requests, tokens

    def record(self, rid: str) -> dict[str, Any]:
        """The record of a reservation."""
        record: Any = self.client.hgetall(keys.reservation(self.root, rid))
        return dict(record)

    def history(self, minute: str | None = None) -> dict[str, Any]:
        """The output history of a minute."""
        found: Any = self.client.hgetall(keys.output_prefix(self.root) + (minute or self.minute()))
        return dict(found)

    def move_to_minute(self, rid: str, name: str) -> None:
        """Make it look as if ``rid`` had been admitted in minute ``name``, with its windows."""
        now = self.record(rid)["minute"]
        self.client.hset(keys.reservation(self.root, rid), "minute", name)
        for prefix in (keys.rpm_prefix(self.root), keys.tpm_prefix(self.root)):
            self.client.rename(prefix + now, prefix + name)

    def open(self) -> int:
        """How many reservations are in the pending set."""
        return int(self.client.zcard(keys.pending(self.root)))
