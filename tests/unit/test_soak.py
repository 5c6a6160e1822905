"""What the soak calls a leak."""

from dataclasses import replace

import pytest

from extproc.demo.fake_provider import JournalEntry
from tests.soak.books import Findings, compare
from tests.soak.verdict import Sample, memory_faults, rest_faults, trend

REST = Sample(
    seconds=0,
    requests=0,
    rss_mb=100,
    pss_mb=90,
    fds=40,
    threads=12,
    streams=0,
    tasks=21,
    blocks=300_000,
    redis_clients=5,
    redis_mb=2,
    redis_keys=10,
    pending=0,
)


def run(*, mb_each: float = 0.0, blocks_each: float = 0.0, first_mb: float = 0.0) -> list[Sample]:
    """80 samples of 50 requests; ``first_mb`` comes in the first quarter and stays."""
    return [
        replace(
            REST,
            requests=50 * number,
            rss_mb=100 + mb_each * 50 * number + first_mb * min(1.0, number / 20),
            blocks=round(300_000 + blocks_each * 50 * number + (number % 3) * 700),
        )
        for number in range(80)
    ]


def test_what_fills_at_first_and_then_stays_is_no_leak() -> None:
    assert memory_faults(run(first_mb=40), most_mb=150) == []


@pytest.mark.parametrize(
    ("samples", "named"),
    [
        (run(blocks_each=6), "memory.blocks"),
        (run(mb_each=0.01), "memory.growth"),
        (run(first_mb=60), "memory.worker"),
        ([replace(one, requests=one.requests * 80) for one in run(mb_each=0.005)], "memory.slope"),
    ],
)
def test_what_grows_is_named(samples: list[Sample], named: str) -> None:
    assert any(fault.startswith(named) for fault in memory_faults(samples, most_mb=150))


def test_a_trend_is_deaf_to_outliers() -> None:
    samples = run(mb_each=0.001)
    samples[50] = replace(samples[50], rss_mb=500)
    assert trend(samples, "rss_mb").slope == pytest.approx(0.001, rel=0.01)
    with pytest.raises(ValueError, match="eight"):
        trend(samples[:7], "rss_mb")


@pytest.mark.parametrize("name", ["streams", "tasks", "fds", "threads", "redis_clients", "pending"])
def test_what_is_left_at_rest_is_named(name: str) -> None:
    spare = {"fds": 12}
    most = getattr(REST, name) + spare.get(name, 0)
    assert rest_faults(REST, replace(REST, **{name: most}), spare=spare) == []
    (fault,) = rest_faults(REST, replace(REST, **{name: most + 1}), spare=spare)
    assert fault.startswith(f"left.{name}:")


def entry(label: str, **fields: object) -> JournalEntry:
    known = {"request_id": "r", "path": "/", "status": 200, "input_tokens": 10}
    return JournalEntry(**{**known, "output_tokens_produced": 5, "label": label, **fields})  # type: ignore[arg-type]


def record(charged: int, **fields: str) -> dict[str, str]:
    known = {"request_id": "r", "state": "SETTLED", "reserved": "50", "outcome": "complete"}
    return {**known, "charged": str(charged), **fields}


@pytest.mark.parametrize(
    ("records", "journal", "drift", "allowed"),
    [
        ([record(15)], [entry("inline/json")], 0, 0),
        ([record(17)], [entry("inline/json")], 2, 0),
        ([], [entry("inline/json")], 15, 0),
        ([record(9)], [], 9, 0),
        ([record(50, state="RESERVED")], [entry("inline/json")], 50, 0),
        # Whoever left: between the input and the reserve.
        ([record(50)], [entry("inline/left-streaming")], 0, 1),
        ([record(51)], [entry("inline/left-streaming")], 36, 0),
        ([record(9)], [entry("inline/left-streaming")], 6, 0),
        # Broken answers are followed by all profiles but native.
        ([record(50)], [entry("native/broken")], 0, 1),
        ([record(50)], [entry("inline/broken")], 35, 0),
        ([record(50, outcome="client_gone")], [], 0, 1),
    ],
)
def test_books_differ_only_where_they_may(
    records: list[dict[str, str]], journal: list[JournalEntry], drift: int, allowed: int
) -> None:
    found = Findings()
    compare(records, journal, found)
    assert found.drift == drift
    assert sum(tally[0] for tally in found.allowed.values()) == allowed
