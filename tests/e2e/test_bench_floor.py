"""The benchmark's floor really works: what it leaves in Redis is what the product would leave."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from extproc.envoyconfig.options import Profile
from extproc.stores import keys
from tests.bench.floor_work import STEPS
from tests.bench.measure import generate_load
from tests.bench.rounds import JSON, STREAMS, Kind
from tests.bench.systems import PROFILES, SERVICE, floor, seeded_valkey, upstream
from tests.bench.traffic import OUTPUT_TOKENS, chat_body, counted

_DEADLINE_SECONDS = 10.0
# Of the upstream's stream: what its usage event says (tests/bench/answers.py).
_STREAM_TOKENS = 700 + 200


def _becomes_true(check: Callable[[], bool]) -> bool:
    until = time.monotonic() + _DEADLINE_SECONDS
    while not (is_true := check()) and time.monotonic() < until:
        time.sleep(0.02)
    return is_true


def _sum(client: redis.Redis, prefix: str) -> int:
    # A run may pass from one minute to the next.
    return sum(int(client.get(key) or 0) for key in client.scan_iter(f"{prefix}*"))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", [JSON, STREAMS], ids=lambda kind: kind.name)
def test_the_floor_charges_what_the_provider_said(
    tmp_path: Path, profile: Profile, kind: Kind
) -> None:
    tokens = counted(chat_body()).input_tokens + OUTPUT_TOKENS if kind is JSON else _STREAM_TOKENS
    with (
        upstream(tmp_path) as behind,
        seeded_valkey(tmp_path) as url,
        floor(behind, tmp_path, profile, STEPS[-1], url) as system,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        load = generate_load(system.port, kind.request, tmp_path, connections=4, seconds=0.3)
        assert load.statuses == {"200": load.requests}
        assert load.failed == 0
        assert load.requests > 0
        assert _sum(client, keys.rpm_prefix(SERVICE)) == load.requests
        assert _becomes_true(
            lambda: _sum(client, keys.tpm_prefix(SERVICE)) == load.requests * tokens
        )
        assert client.zcard(keys.pending(SERVICE)) == 0
        records = list(client.scan_iter(f"{keys.reservation_prefix(SERVICE)}*"))
        assert len(records) == load.requests
        assert client.hget(records[0], "outcome") == "complete"


def test_without_its_last_step_reservations_stay_open(tmp_path: Path) -> None:
    with (
        upstream(tmp_path) as behind,
        seeded_valkey(tmp_path) as url,
        floor(behind, tmp_path, "native", "ending", url) as system,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        load = generate_load(system.port, JSON.request, tmp_path, connections=4, seconds=0.2)
        assert load.requests > 0
        assert client.zcard(keys.pending(SERVICE)) == load.requests
