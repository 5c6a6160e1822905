"""Random inputs from hypothesis, round after round, until the time is over."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.findings import Campaign
from tests.fuzz.oracles import warm_up

_MOST_BYTES = 400
_EXAMPLES_A_ROUND = 500
# The campaign itself makes a finding small, so that several can be found in one run.
_SETTINGS = settings(
    max_examples=_EXAMPLES_A_ROUND,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class _Over(BaseException):
    """The time is over."""


def run(deadline: float, *, seed: int, folder: Path, finish: Callable[[int, int], None]) -> None:
    """Runs until ``deadline`` (monotonic), then calls ``finish``, which ends the process."""
    warm_up()
    campaign = Campaign(folder, print)
    rounds = random.Random(seed)

    @_SETTINGS
    @given(st.binary(max_size=_MOST_BYTES) | st.binary(min_size=64, max_size=_MOST_BYTES))
    def one(data: bytes) -> None:
        if time.monotonic() > deadline:
            raise _Over
        campaign.run(data)

    try:
        while True:
            _seeded(rounds.getrandbits(64), one)()
    except (_Over, KeyboardInterrupt):
        finish(campaign.executions, campaign.findings)


def _seeded(number: int, test: Callable[[], None]) -> Callable[[], None]:
    return seed(number)(test)
