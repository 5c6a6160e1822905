"""What the soak calls a leak: pure functions over what was sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

# After the first quarter everything that is kept in bounds is full, or nearly.
_WARM_UP = 0.25
# The worker's memory after a million plain requests, and with bodies of 17 MB among them: what a
# few of those need at once, glibc keeps. The aim for the first, 150, is not reached: both
# vocabularies are 115 MB of the 226 that a million requests ended with.
MOST_WORKER_MB, MOST_MIXED_MB = 240.0, 400.0
# Growth of the median from the second quarter to the last: what arenas and tables may still take.
MOST_GROWTH_MB = 12.0
# The same as blocks of Python's allocator a request. An object that every request leaves behind,
# with its strings, is six or more.
MOST_BLOCKS_PER_REQUEST = 4.0
# Below, a slope is noise, times ten: an hour of mixed kinds (90,000) gave 152 MB where a million
# requests gave none.
_ENOUGH_REQUESTS = 250_000
# With so many requests behind it a slope counts too, as MB in a million requests.
MOST_MB_PER_MILLION = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server process and Redis at one moment. ``seconds`` since the start of the load,
    ``requests`` ended by then. ``blocks``, ``streams`` and ``tasks`` are the server's own gauges.
    """

    seconds: float
    requests: int
    rss_mb: float
    pss_mb: float
    fds: int
    threads: int
    streams: int
    tasks: int
    blocks: int
    redis_clients: int
    redis_mb: float
    redis_keys: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """``growth``: the last quarter's median less the second quarter's. ``slope``: a request, by
    Theil and Sen: the median of the slopes between all pairs of samples, deaf to outliers."""

    growth: float
    slope: float
    requests: int


def trend(samples: Sequence[Sample], name: str) -> Trend:
    """Of one value after the warm-up. Raises ValueError for fewer than eight samples."""
    if len(samples) < 8:
        raise ValueError(f"a trend needs eight samples, got {len(samples)}")
    values = [(sample.requests, float(asdict(sample)[name])) for sample in samples]
    quarter = len(values) // 4
    kept = values[int(len(values) * _WARM_UP) :]
    # Two hundred points give twenty thousand pairs, which is enough.
    kept = kept[:: max(1, len(kept) // 200)]
    slopes = [
        (later - earlier) / (then - now)
        for index, (now, earlier) in enumerate(kept)
        for then, later in kept[index + 1 :]
        if then > now
    ]
    second = [value for _, value in values[quarter : 2 * quarter]]
    last = [value for _, value in values[-quarter:]]
    middle_of = sum(number for number, _ in values[quarter : 2 * quarter]) / quarter
    last_of = sum(number for number, _ in values[-quarter:]) / quarter
    return Trend(
        growth=median(last) - median(second),
        slope=median(slopes) if slopes else 0.0,
        requests=round(last_of - middle_of),
    )


def memory_faults(samples: Sequence[Sample], *, most_mb: float) -> list[str]:
    """Names of the bounds that memory passed, with the numbers."""
    faults = []
    rss, blocks = trend(samples, "rss_mb"), trend(samples, "blocks")
    total = samples[-1].requests
    if samples[-1].rss_mb > most_mb:
        faults.append(f"memory.worker: {samples[-1].rss_mb:.1f} MB, at most {most_mb:g}")
    if rss.growth > MOST_GROWTH_MB:
        faults.append(f"memory.growth: {rss.growth:.1f} MB, at most {MOST_GROWTH_MB:g}")
    if total >= _ENOUGH_REQUESTS and rss.slope * 1e6 > MOST_MB_PER_MILLION:
        faults.append(
            f"memory.slope: {rss.slope * 1e6:.0f} MB in a million requests, "
            f"at most {MOST_MB_PER_MILLION:g}"
        )
    if blocks.slope > MOST_BLOCKS_PER_REQUEST:
        faults.append(
            f"memory.blocks: {blocks.slope:.2f} blocks a request stay behind, "
            f"at most {MOST_BLOCKS_PER_REQUEST:g}"
        )
    return faults


def rest_faults(before: Sample, after: Sample, *, spare: Mapping[str, int]) -> list[str]:
    """What is more at rest after the load than at rest before it. ``spare``: what pools may have
    opened meanwhile and keep, by name."""
    at_rest = ("streams", "tasks", "fds", "threads", "redis_clients", "pending")
    faults = []
    for name in at_rest:
        then, now = int(asdict(before)[name]), int(asdict(after)[name])
        most = then + spare.get(name, 0)
        if now > most:
            faults.append(f"left.{name}: {now} at rest, {then} before the load, at most {most}")
    return faults
