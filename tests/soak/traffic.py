"""The soak's load: mixed kinds at a constant rate, or one cheap kind as fast as it goes."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.soak.client import Pool
from tests.soak.kinds import KINDS, request_of

_GIVE_UP_SECONDS = 120.0
_CONNECTIONS = 32
# The last slow streams have to end before the run does.
_SLOW_RESERVE_SECONDS = 75.0
# On a busy machine a request may find the server late, and Envoy answers 504 for it. More than a
# few of a thousand are a fault.
_LATE = ("503", "504", "lost")
MOST_LATE_PERMILLE = 20


class Traffic:
    """Sends requests and counts ``answers`` by (kind, status).

    ``ports`` are Envoys by profile, which take turns. ``many`` and ``ghosts`` are ids of services
    that are known, and that are not.
    """

    def __init__(
        self, ports: Mapping[str, int], *, many: Sequence[str], ghosts: Sequence[str], seed: int = 1
    ) -> None:
        self._pools = {profile: Pool(port) for profile, port in ports.items()}
        self._many, self._ghosts = many, ghosts
        self._ghost = itertools.cycle(ghosts)
        self._some = random.Random(seed)
        self._profiles = itertools.cycle(ports)
        self.answers: Counter[tuple[str, str]] = Counter()
        self.under_way = 0

    @property
    def ended(self) -> int:
        """Requests that have their answer, or none."""
        return self.answers.total()

    def wrong(self) -> list[str]:
        """What was not answered as its kind is to be; late ones are only counted beyond a few."""
        wrong = []
        for (kind, status), count in sorted(self.answers.items()):
            if status in KINDS[kind].statuses:
                continue
            if status not in _LATE:
                wrong.append(f"answers: {count} x {status} to {kind}")
        late = self.late()
        if late * 1000 > MOST_LATE_PERMILLE * max(200, self.ended):
            wrong.append(f"answers: {late} of {self.ended} came late or never")
        return wrong

    def late(self) -> int:
        """Answers that came too late, or never, to those who waited."""
        return sum(
            count
            for (kind, status), count in self.answers.items()
            if status in _LATE and status not in KINDS[kind].statuses
        )

    def _service_of(self, kind: str) -> str:
        match KINDS[kind].service:
            case "any":
                return self._some.choice(self._many)
            case "ghost":
                return next(self._ghost)
            case fixed:
                return fixed

    async def one(self, kind: str, *, profile: str, service: str | None = None) -> None:
        """Send one request and count its answer."""
        service = service or self._service_of(kind)
        request = request_of(kind, service, self._some, profile=profile)
        self.under_way += 1
        try:
            status = await self._pools[profile].send(request, give_up_seconds=_GIVE_UP_SECONDS)
        finally:
            self.under_way -= 1
        self.answers[kind, status] += 1

    async def introduce(self, *, is_judged: bool = True) -> None:
        """Every known service once, and every kind by every profile, so that what is kept by
        service or by kind is there before anything is compared. No slow streams. An upstream that
        answers all alike gives answers that are not to be judged."""
        for start in range(0, len(self._many), _CONNECTIONS):
            services = self._many[start : start + _CONNECTIONS]
            await asyncio.gather(
                *(
                    self.one("json", profile=profile, service=service)
                    for service, profile in zip(services, self._profiles, strict=False)
                )
            )
        for profile in self._pools:
            kinds = [name for name, kind in KINDS.items() if not kind.is_long]
            for kind in kinds:
                if profile in KINDS[kind].profiles:
                    await self.one(kind, profile=profile)
        if not is_judged:
            self.answers.clear()

    async def steady(self, *, rate: float, seconds: float) -> None:
        """``rate`` requests a second for ``seconds``, each at its time however long others take."""
        weights = {name: kind.weight for name, kind in KINDS.items()}
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                at = number / rate
                if (wait := started + at - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                (kind,) = self._some.choices(list(weights), list(weights.values()))
                profile = next(self._profiles)
                is_late = KINDS[kind].is_long and at > seconds - _SLOW_RESERVE_SECONDS
                if is_late or profile not in KINDS[kind].profiles:
                    kind = "json"
                group.create_task(self.one(kind, profile=profile))

    async def as_fast_as_it_goes(self, requests: int) -> None:
        """So many plain requests; each connection sends its next one when it has its answer."""
        numbers = iter(range(requests))

        async def send_all() -> None:
            for _ in numbers:
                await self.one("json", profile=next(self._profiles))

        await asyncio.gather(*(send_all() for _ in range(_CONNECTIONS)))

    async def close(self) -> None:
        """Close all free connections."""
        for pool in self._pools.values():
            await pool.close()
