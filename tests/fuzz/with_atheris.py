"""Guided by coverage: libFuzzer changes the inputs, of which new ones reach new branches.

atheris is not locked: it has wheels for few platforms, and needs a compiler elsewhere.
"""

import io
import random
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import atheris

with (
    redirect_stderr(io.StringIO()),  # a line for each module
    atheris.instrument_imports(include=["extproc.providers", "extproc.core"]),
):
    from tests.fuzz.findings import Campaign
    from tests.fuzz.oracles import warm_up

_MOST_BYTES = 400
_FIRST_INPUTS = 300


def run(deadline: float, *, seed: int, folder: Path, finish: Callable[[int, int], None]) -> None:
    """Runs until ``deadline`` (monotonic), then calls ``finish``, which ends the process. Inputs
    that reached something new stay in ``folder``/corpus for the next run."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    for number in range(_FIRST_INPUTS):
        (corpus / f"random-{number}").write_bytes(rng.randbytes(rng.randrange(_MOST_BYTES)))
    warm_up()
    campaign = Campaign(folder, print)

    def one(data: bytes) -> None:
        try:
            campaign.run(data)
        except KeyboardInterrupt:
            finish(campaign.executions, campaign.findings)
        if time.monotonic() > deadline:
            finish(campaign.executions, campaign.findings)

    options = [
        sys.argv[0],
        f"-seed={seed % 2**31 or 1}",
        f"-max_len={_MOST_BYTES}",
        "-len_control=0",
        "-handle_int=0",
        f"-artifact_prefix={folder}/",
        "-report_slow_units=1000",
        "-print_final_stats=0",
        "-verbosity=0",
        str(corpus),
    ]
    atheris.Setup(options, one)
    atheris.Fuzz()
