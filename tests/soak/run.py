"""One soak: the stack, its load, what is watched meanwhile, and what is said of it in the end."""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis

from extproc.demo.processes import Child, clean_environment, free_ports
from extproc.demo.stack import Stack
from tests.soak.books import Findings, SoakBooks
from tests.soak.changes import keep_changing, set_limits
from tests.soak.kinds import IDEMPOTENCY_HEADER
from tests.soak.traffic import Traffic
from tests.soak.verdict import (
    MOST_MIXED_MB,
    MOST_WORKER_MB,
    Sample,
    memory_faults,
    rest_faults,
    trend,
)
from tests.soak.watch import Watch
from tests.support.envoys import another_envoy

PROFILES = ("inline", "observe", "native")
# Pools and executors grow with the load and stay: eight connections to Redis, threads that count
# and that ask SQL.
_SPARE = {"fds": 12, "redis_clients": 8, "threads": 6}
_QUIET_SECONDS = 90.0
_POLL_SECONDS = 0.5
_BOOKS_FROM, _BOOKS_TO = 35, 55
_SHOWN_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``rate`` None: ``requests`` plain ones as fast as it goes, else ``rate`` a second of all
    kinds for ``seconds``."""

    profiles: tuple[str, ...] = PROFILES
    rate: float | None
    seconds: float = 0.0
    requests: int = 0
    services: int = 600
    ghosts: int = 1500

    @property
    def interval(self) -> float:
        """Seconds between samples."""
        return min(10.0, max(1.0, self.seconds / 120))


@dataclass(slots=True)
class Result:
    """All that is reported. ``books`` None: there was no journal to compare with."""

    plan: Plan
    before: Sample
    after: Sample
    samples: Sequence[Sample]
    answers: dict[str, int]
    seconds: float
    books: Findings | None
    faults: list[str] = field(default_factory=list)


@contextmanager
def _cheap_upstream(directory: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.soak.cheap_upstream", "--port", str(port)]
    log = directory / "upstream.log"
    child = Child("upstream", command, log_path=log, env=clean_environment())
    child.start()
    try:
        child.wait_ready(lambda: "listening" in child.output(), deadline_s=30)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop(deadline_s=10)


@contextmanager
def running(plan: Plan, directory: Path) -> Iterator[tuple[Stack, dict[str, int]]]:
    """A stack with one Envoy for each profile, all before one server; their ports by profile."""
    many = [f"s-{number:05}" for number in range(plan.services)]
    ghosts = [f"ghost-{number:05}" for number in range(plan.ghosts)]
    first, *others = plan.profiles
    with ExitStack() as opened:
        upstream = None
        if plan.rate is None:
            upstream = opened.enter_context(_cheap_upstream(directory))
        stack = Stack(
            run_dir=directory,
            services=[*many, *ghosts, "small", "turns"],
            upstream_url=upstream,
            envoy_options={
                "profile": first,
                "idempotency_header": IDEMPOTENCY_HEADER,
                "access_log_path": None,
                # Slow streams are renewed while they run.
                "access_log_flush_seconds": 20.0,
                "admission_timeout_ms": 5000,
                "metering_timeout_ms": 5000,
            },
            serve_env={
                "TOKENWEIR_ADMISSION__IDEMPOTENCY_HEADER": IDEMPOTENCY_HEADER,
                "TOKENWEIR_ADMISSION__IDEMPOTENCY_TTL_SECONDS": "900",
                "TOKENWEIR_ADMISSION__TIMEOUT_MS": "4000",
                "TOKENWEIR_REDIS__TIMEOUT_MS": "2000",
            },
        )
        opened.enter_context(stack)
        ports = {first: stack.envoy_port}
        for profile in others:
            seen = opened.enter_context(another_envoy(stack, profile))  # type: ignore[arg-type]
            ports[profile] = seen.envoy_port
        yield stack, ports


async def _at_rest(watch: Watch, requests: int, *, tasks: int | None = None) -> Sample:
    """The first sample with nothing open and, with ``tasks``, no more tasks than those; after the
    deadline whatever there is."""
    deadline = time.monotonic() + _QUIET_SECONDS
    calm, last = 0, -1
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        sample = await asyncio.to_thread(watch.sample, requests)
        is_still = sample.tasks <= tasks if tasks is not None else sample.tasks == last
        calm = calm + 1 if is_still and not sample.streams and not sample.pending else 0
        last = sample.tasks
        # The gauges are two seconds old at most.
        if calm * _POLL_SECONDS > 4 or time.monotonic() > deadline:
            return sample


async def _watch(watch: Watch, traffic: Traffic, interval: float) -> None:
    while True:
        await asyncio.to_thread(watch.take, traffic.ended)
        await asyncio.sleep(interval)


async def _read_books(books: SoakBooks) -> None:
    while True:
        while not _BOOKS_FROM < await asyncio.to_thread(books.second) < _BOOKS_TO:
            await asyncio.sleep(1)
        await asyncio.to_thread(books.read)
        await asyncio.sleep(_BOOKS_TO - _BOOKS_FROM)


async def _soak(plan: Plan, stack: Stack, ports: dict[str, int]) -> Result:
    many = [name for name in stack.services if name.startswith("s-")]
    ghosts = [name for name in stack.services if name.startswith("ghost-")]
    await set_limits(stack, many)
    traffic = Traffic(ports, many=many, ghosts=ghosts)
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as client:
        watch = Watch(stack, client)
        books = SoakBooks(client, stack.provider_url) if plan.rate is not None else None
        await traffic.introduce(is_judged=plan.rate is not None)
        before = await _at_rest(watch, traffic.ended)
        watch.start()
        started = time.monotonic()
        beside = [asyncio.create_task(_watch(watch, traffic, plan.interval))]
        if books is not None:
            beside.append(asyncio.create_task(_read_books(books)))
            beside.append(asyncio.create_task(keep_changing(stack, many)))
        try:
            if plan.rate is None:
                await traffic.as_fast_as_it_goes(plan.requests)
            else:
                await traffic.steady(rate=plan.rate, seconds=plan.seconds)
            seconds = time.monotonic() - started
        finally:
            for task in beside:
                task.cancel()
            ends = await asyncio.gather(*beside, return_exceptions=True)
        await traffic.close()
        watch.take(traffic.ended)
        after = await _at_rest(watch, traffic.ended, tasks=before.tasks)
        faults = [f"watching: {end!r}" for end in ends if isinstance(end, Exception)]
        faults += traffic.wrong()
        faults += memory_faults(
            watch.samples, most_mb=MOST_WORKER_MB if plan.rate is None else MOST_MIXED_MB
        )
        faults += rest_faults(before, after, spare=_SPARE)
        if leases := watch.leases():
            faults.append(f"left.leases: {leases} places of concurrency limits are held")
        if immortal := watch.immortal():
            faults.append(f"redis.immortal: {len(immortal)} keys, {immortal[:5]}")
        found = None if books is None else books.close()
        if found is not None and len(found.late) > late_bound(found, traffic.late()):
            faults.append(f"drift.late: {len(found.late)} copied answers, {found.late[:3]}")
        if found is not None and found.drift:
            faults.append(f"drift: {found.drift} tokens at {len(found.faults)} places")
            faults += [f"drift: {line}" for line in found.faults[:_SHOWN_FAULTS]]
    answers = {f"{kind} {status}": count for (kind, status), count in traffic.answers.items()}
    return Result(
        plan=plan,
        before=before,
        after=after,
        samples=watch.samples,
        answers=dict(sorted(answers.items())),
        seconds=seconds,
        books=found,
        faults=faults,
    )


def late_bound(found: Findings, late_answers: int) -> int:
    """How many copied answers may come too late. An answer that came late itself shows that the
    machine stood still for seconds, which is late for all that were under way."""
    return found.reservations // 200 + 20 * late_answers


def soak(plan: Plan, directory: Path) -> Result:
    """Run it. Raises ChildError when the stack does not start."""
    with running(plan, directory) as (stack, ports):
        result = asyncio.run(_soak(plan, stack, ports))
        if '"level": "error"' in stack.log("serve"):
            lines = [line for line in stack.log("serve").splitlines() if '"level": "error"' in line]
            result.faults.append(f"log: {len(lines)} errors, {lines[0][:300]}")
        return result


def flat(result: Result) -> dict[str, Any]:
    """What goes into soak.json: flat keys, no lists but that of the faults."""
    rss, blocks = trend(result.samples, "rss_mb"), trend(result.samples, "blocks")
    values: dict[str, Any] = {
        "seconds": round(result.seconds, 1),
        "rate": result.plan.rate,
        "profiles": ",".join(result.plan.profiles),
        "requests": result.samples[-1].requests,
        "requests_per_second": round(
            (result.samples[-1].requests - result.before.requests) / result.seconds, 1
        ),
        "memory.worker_mb": result.samples[-1].rss_mb,
        "memory.most_mb": max(sample.rss_mb for sample in result.samples),
        "memory.growth_mb": round(rss.growth, 2),
        "memory.mb_per_million": round(rss.slope * 1e6, 1),
        "memory.blocks_per_request": round(blocks.slope, 3),
        "faults": result.faults,
    }
    for name, sample in (("before", result.before), ("after", result.after)):
        values |= {f"{name}.{key}": value for key, value in asdict(sample).items()}
    if result.books is not None:
        values |= {
            "books.drift": result.books.drift,
            "books.reservations": result.books.reservations,
            "books.journal": result.books.journal,
            "books.windows": result.books.windows,
            "books.late_copies": len(result.books.late),
        }
        for label, (count, over, under) in sorted(result.books.allowed.items()):
            values |= {
                f"allowed.{label}.requests": count,
                f"allowed.{label}.too_many_tokens": over,
                f"allowed.{label}.too_few_tokens": under,
            }
    return values | {f"answers.{name}": count for name, count in result.answers.items()}
