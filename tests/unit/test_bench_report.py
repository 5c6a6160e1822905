"""The benchmark's keys and its text, of a run whose numbers are known."""

from pathlib import Path

import pytest

from tests.bench import chart
from tests.bench.chain import Chain, answers, faults, wrong_answers
from tests.bench.large_prompt import KINDS as LARGE_KINDS
from tests.bench.large_prompt import LargeKind, LargePrompts
from tests.bench.latency import LEVELS, Level
from tests.bench.load import LoadResult
from tests.bench.measure import Sample
from tests.bench.report import machine_values, peer_ratios, text
from tests.bench.report_chain import chain_values
from tests.bench.report_limits import Value
from tests.bench.report_reading import large_values
from tests.bench.report_tables import AT_LEAST, AT_MOST
from tests.bench.rounds import KINDS, Rounds
from tests.bench.scaling import Idle, Memory, Scaling, scaling_faults
from tests.bench.steady import Answered, Seen
from tests.bench.systems import PROFILES

LOAD = LoadResult(requests=10, seconds=2.0, statuses={"200": 10}, failed=0, p50_ms=1.0, p99_ms=2.0)


def sample(envoy: float, python: float | None) -> Sample:
    return Sample(
        load=LOAD,
        envoy_cpu_us=envoy,
        python_cpu_us=python,
        messages=3.0,
        redis_scripts=2.0,
        redis_reads=2.0,
    )


def rounds() -> Rounds:
    """Three rounds; in the second one everybody was twice as slow, and in the third only ours."""
    return {
        "bare": [sample(100, None), sample(200, None), sample(100, None)],
        "empty": [sample(150, 200), sample(300, 400), sample(150, 200)],
        "ours": [sample(150, 300), sample(300, 600), sample(150, 900)],
    }


def seen(seconds: float) -> Seen:
    requests = [
        Answered(due=at, late=0.0001, first=seconds / 2, latency=seconds, status=200)
        for at in range(10)
    ]
    return Seen(requests, [seconds / 10] * 20)


def level(*, rate: float) -> Level:
    by_system = {"bare": seen(0.010), "empty": seen(0.012), "ours": seen(0.013)}
    return Level(rate=rate, seen=by_system)


@pytest.fixture
def chain() -> Chain:
    large = LargePrompts(
        p50_ms=1.0,
        p99_ms=2.0,
        kinds={
            kind: LargeKind(p50_ms=1.0, p99_ms=3.0, p99_ratio=1.5, own_p50_ms=9.0)
            for kind in LARGE_KINDS
        },
        requests=5,
        not_200=0,
    )
    return Chain(
        rounds={kind.name: {profile: rounds() for profile in PROFILES} for kind in KINDS},
        saturation={kind.name: dict.fromkeys(PROFILES, LOAD) for kind in KINDS},
        levels={
            kind.name: {
                profile: {percent: level(rate=percent) for percent in LEVELS}
                for profile in PROFILES
            }
            for kind in KINDS
        },
        at_stream_rate=[sample(0, 200), sample(0, 500), sample(0, 300)],
        single=sample(1, 2),
        scaling=Scaling(
            rounds={"one": [sample(0, 100)], "two": [sample(0, 80)]}, shares=(0.4, 0.6)
        ),
        memory=Memory(resident_mb=90.0, proportional_mb=80.0, before_mb=70.0, requests=1234),
        large=large,
        idle=Idle(all_percent=2.0, worker_percent=0.5),
    )


def all_values(chain: Chain) -> dict[str, Value]:
    assert chain.large is not None
    return machine_values() | chain_values(chain) | large_values(chain.large)


def test_ratios_are_medians_of_what_was_measured_together(chain: Chain) -> None:
    values = chain_values(chain)
    for kind in ("json", "stream200"):
        for profile in PROFILES:
            base = f"{kind}.{profile}"
            assert values[f"{base}.python_cpu_ratio"] == 1.5
            assert values[f"{base}.python_cpu_us"] == 600
            assert values[f"{base}.chain_cpu_ratio"] == 4.5
            assert values[f"{base}.empty_chain_cpu_ratio"] == 3.5
            assert values[f"{base}.rps"] == 5
    assert values["stream200.native.python_cpu_over_json"] == 1.5
    assert values["scaling.two_workers"] == 2.5
    assert values["scaling.least_share"] == 0.4


def test_what_is_added_is_the_difference_to_bare_at_the_same_rate(chain: Chain) -> None:
    values = chain_values(chain)
    for percent in LEVELS:
        base = f"json.inline.at_{percent}"
        for rank in ("p50", "p90", "p99", "p999"):
            assert values[f"{base}.added_{rank}_ms"] == pytest.approx(3)
            assert values[f"{base}.empty_added_{rank}_ms"] == pytest.approx(2)
        assert values[f"{base}.bare_p50_ms"] == pytest.approx(10)
    assert values["json.native.added_p99_ms"] == pytest.approx(3)
    assert values["stream200.observe.added_ttft_p50_ms"] == pytest.approx(1.5)
    assert values["stream200.inline.added_chunk_p99_ms"] == pytest.approx(0.3)
    assert values["generator.late_p99_ms"] == pytest.approx(0.1)


def test_every_promised_key_is_there(chain: Chain) -> None:
    values = all_values(chain)
    elsewhere = {"litellm.cpu_ratio", "overshoot.strict"}
    assert (AT_MOST.keys() | AT_LEAST.keys()) - values.keys() == elsewhere
    for profile in PROFILES:
        for key in ("python_cpu_ratio", "python_cpu_us", "rps", "added_p50_ms", "added_p99_ms"):
            assert f"json.{profile}.{key}" in values
        for key in ("python_cpu_ratio", "chain_cpu_ratio", "added_ttft_p50_ms"):
            assert f"stream200.{profile}.{key}" in values
    assert {"redis.round_trips_per_request", "memory.worker_mb"} < values.keys()


def test_people_read_the_same_and_what_was_not_reached(chain: Chain) -> None:
    values = all_values(chain) | {"litellm.python_cpu_us": 60_000.0}
    values |= peer_ratios(values)
    shown = text(values)
    for words in ("1.50", "after 1,234 requests", "inline, 90 %", "Two workers carry 2.50"):
        assert words in shown
    (good,) = [line for line in shown.splitlines() if line.startswith("litellm.cpu_ratio")]
    assert "0.010  at most 0.05" in good
    assert "NOT REACHED" not in good
    (bad,) = [line for line in shown.splitlines() if line.startswith("stream200.inline.python")]
    assert bad.endswith("NOT REACHED")


def test_without_peers_nothing_is_said_of_them(chain: Chain) -> None:
    assert peer_ratios(all_values(chain)) == {}


def test_the_picture_is_drawn(chain: Chain, tmp_path: Path) -> None:
    values = all_values(chain)
    peer: dict[str, Value] = {"litellm.python_cpu_us": 90_000.0, "litellm.stream200_cpu_us": 9e5}
    for name, more in (("alone", {}), ("peers", peer)):
        path = tmp_path / f"{name}.png"
        chart.draw(values | more, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_lost_answer_is_a_fault_and_no_answer(chain: Chain) -> None:
    before = answers(chain)["ours"]
    assert faults(chain) == []
    assert wrong_answers(chain) == 0
    chain.levels["json"]["native"][50].seen["ours"].requests[3].status = 0
    assert answers(chain)["ours"] == before - 1
    assert faults(chain) == ["json, native, 50 %, ours: 1 of 10 answers no 200"]
    assert wrong_answers(chain) == 1


def test_a_worker_without_work_is_a_fault() -> None:
    assert scaling_faults(Scaling(rounds={}, shares=(0.3, 0.7))) == []
    (fault,) = scaling_faults(Scaling(rounds={}, shares=(0.05, 0.95)))
    assert "0.05" in fault
