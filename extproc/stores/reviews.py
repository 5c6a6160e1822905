"""What waits for people's word, and how they give it."""

import asyncio
from typing import Any

from extproc.core.explain import Unreadable
from extproc.core.explain_rules import moment_of
from extproc.core.ids import ACROSS_PREFIX
from extproc.core.reservations import Settlement, SettleStatus, Source, State
from extproc.core.reviews import Answer, Resolution, Review
from extproc.stores import keys
from extproc.stores.client import RedisClient
from extproc.stores.explain_lookups import SPOILT, unreadable
from extproc.stores.reservation_store import RedisReservationStore

# Records read side by side, and roots looked at side by side.
_AT_ONCE = 200
_FIELDS = ("at", "request_id", "model", "input", "charged", "cost")


class Reviews:
    """Lists and resolves reservations in review. Raises StoreUnavailableError."""

    def __init__(self, redis: RedisClient, *, writes_events: bool = False) -> None:
        self._redis = redis
        self._store = RedisReservationStore(redis, writes_events=writes_events)

    async def waiting(self, root: str | None = None) -> list[Review | Unreadable]:
        """All that wait at ``root``, or at every root, the longest waiting of each root first.

        What a request holds at roots that all share is a part of it, and listed only when ``root``
        is such a one. A record that is spoilt is only named.
        """
        roots = [root] if root is not None else await self._own_roots()
        found: list[Review | Unreadable] = []
        for start in range(0, len(roots), _AT_ONCE):
            some = roots[start : start + _AT_ONCE]
            counts = await asyncio.gather(*map(self._store.review_count, some))
            for each, count in zip(some, counts, strict=True):
                if count:
                    found += await self._list_root(each)
        return found

    async def _own_roots(self) -> list[str]:
        """The registered ones, and whoever has something in review: what waits for people may wait
        long after the last request, and Redis may have lost who was registered meanwhile."""
        found = set(await self._store.roots())
        before, _, after = keys.review("*").partition("*")
        async for page in self._redis.scan(keys.review("*")):
            found.update(key.removeprefix(before).removesuffix(after) for key in page)
        return sorted(one for one in found if not one.startswith(ACROSS_PREFIX))

    async def _list_root(self, root: str) -> list[Review | Unreadable]:
        flat = await self._redis.command("ZRANGE", keys.review(root), 0, -1, "WITHSCORES")
        waiting = list(zip(flat[::2], flat[1::2], strict=True))
        found: list[Review | Unreadable] = []
        for start in range(0, len(waiting), _AT_ONCE):
            some = waiting[start : start + _AT_ONCE]
            reads = (self._review(root, name, since) for name, since in some)
            found += [one for one in await asyncio.gather(*reads) if one is not None]
        return found

    async def _review(
        self, root: str, reservation_id: str, since: str
    ) -> Review | Unreadable | None:
        record = await self._redis.command(
            "HMGET", keys.reservation(root, reservation_id), *_FIELDS
        )
        at, request_id, model, input_tokens, charged, cost = record
        if charged is None:
            return None  # resolved or forgotten since we looked
        try:
            return Review(
                reservation_id=reservation_id,
                root=root,
                since=moment_of(int(float(since))),
                admitted_at=None if at is None else moment_of(int(at)),
                request_id=request_id or "",
                model=model or "",
                input_tokens=int(input_tokens or 0),
                charged_tokens=int(charged),
                charged_cost_micros=None if cost is None else int(cost),
            )
        except SPOILT as error:
            return unreadable(root, reservation_id, error)

    async def resolve(self, decision: Settlement) -> Resolution:
        """Charge a reservation that waits by ``decision`` (see ``core.reviews``), in the minute and
        periods of its admission; once. One that has ended for certain is left as it is.

        Looking first and settling after is two calls; that is safe, because what is in review never
        opens again, and the settlement is compared with the record in its script. At a root that
        all share nothing is done while the request waits at its own: to resolve it there is to
        resolve it here.
        """
        if own_root := await self._own_root(decision):
            return Resolution(answer=Answer.ELSEWHERE, own_root=own_root)
        try:
            return await self._resolve(decision)
        except SPOILT:
            return Resolution(answer=Answer.UNREADABLE)

    async def _own_root(self, decision: Settlement) -> str | None:
        """Where the request waits of which the decision names only a part."""
        if not decision.root.startswith(ACROSS_PREFIX):
            return None
        roots = await self._own_roots()
        for start in range(0, len(roots), _AT_ONCE):
            some = roots[start : start + _AT_ONCE]
            reads = (
                self._redis.command("ZSCORE", keys.review(root), decision.reservation_id)
                for root in some
            )
            for root, since in zip(some, await asyncio.gather(*reads), strict=True):
                if since is not None:
                    return root
        return None

    async def _resolve(self, decision: Settlement) -> Resolution:
        root, name = decision.root, decision.reservation_id
        waits, known = await asyncio.gather(
            self._redis.command("ZSCORE", keys.review(root), name), self._known(root, name)
        )
        if known is None:
            return Resolution(answer=Answer.UNKNOWN)
        was_charged = int(known["charged"])
        if waits is not None:
            is_release = decision.state is State.RELEASED
            verb = self._store.release if is_release else self._store.settle
            result = await verb(decision)
            known = await self._known(root, name)
            if known is None or result.status is SettleStatus.MISSING:
                return Resolution(answer=Answer.UNKNOWN)
            if result.status is SettleStatus.IMPROVED:
                return _resolution(Answer.RESOLVED, known, result.charged_before_tokens)
            was_charged = int(known["charged"])  # somebody else was quicker
        return _resolution(_compare(decision, known), known, was_charged)

    async def _known(self, root: str, reservation_id: str) -> dict[str, Any] | None:
        """The record; None without one, or with the mere note of a release without a reserve."""
        flat = await self._redis.command("HGETALL", keys.reservation(root, reservation_id))
        record = dict(zip(flat[::2], flat[1::2], strict=True))
        return record if record.get("minute") else None


def _compare(decision: Settlement, known: dict[str, Any]) -> Answer:
    if known.get("source") != Source.OPERATOR:
        return Answer.NOT_IN_REVIEW
    wanted = decision.input_tokens + decision.output_tokens
    # The record of a simple root does not tell input from output.
    wanted_input = int(known.get("in", decision.input_tokens))
    is_same = (
        known["state"] == decision.state
        and int(known["charged"]) == wanted
        and wanted_input == decision.input_tokens
    )
    return Answer.SAME if is_same else Answer.OTHER


def _resolution(answer: Answer, known: dict[str, Any], was_charged: int) -> Resolution:
    return Resolution(
        answer=answer,
        state=known["state"],
        source=known.get("source", ""),
        charged_tokens=int(known["charged"]),
        was_charged_tokens=was_charged,
    )
