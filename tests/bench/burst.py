"""Overshoot: many requests at once on one key whose limit fits only some of them."""

import json
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.bench.measure import generate_load
from tests.bench.systems import BURST_SERVICE, System, fetch
from tests.bench.traffic import chat_body, counted, raw_request
from tests.support.valkey import wait_for_quiet_minute

SENT = 200
FITS = 37
# Less than tokenweir's default for a service without history, so that the cap is what it reserves.
_OUTPUT_TOKENS = 64
_LABEL = "burst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """``used_tokens`` is what the provider says that it produced, ``tpm`` the limit."""

    admitted: int
    other: int
    used_tokens: int
    tpm: int

    @property
    def overshoot_requests(self) -> int:
        """Requests admitted beyond those that fit."""
        return max(0, self.admitted - FITS)

    @property
    def overshoot_tokens(self) -> int:
        """Tokens used beyond the limit."""
        return max(0, self.used_tokens - self.tpm)


def burst(system: System, provider_url: str, directory: Path) -> Burst:
    """Send all at once; each uses exactly what was reserved for it, so nothing is given back."""
    assert system.stack is not None
    body = chat_body(max_tokens=_OUTPUT_TOKENS)
    facts = counted(body)
    tpm = FITS * (facts.input_tokens + _OUTPUT_TOKENS)
    system.stack.set_limits(BURST_SERVICE, rpm=10 * SENT, tpm=tpm)
    # The delay keeps every answer out until the last request has been decided.
    script = f"label={_LABEL};input={facts.input_tokens};output={_OUTPUT_TOKENS};delay_ms=500"
    request = raw_request(BURST_SERVICE, body, script=script)
    assert system.redis_url is not None
    with redis.Redis.from_url(system.redis_url) as client:
        wait_for_quiet_minute(client)
    load = generate_load(system.port, request, directory, connections=SENT, seconds=30, each=1)
    admitted = load.statuses.get("200", 0)
    journal = json.loads(fetch(f"{provider_url}/_fake/journal"))
    used = sum(
        entry["input_tokens"] + entry["output_tokens_produced"]
        for entry in journal
        if entry["label"] == _LABEL
    )
    return Burst(
        admitted=admitted,
        other=load.requests - admitted - load.statuses.get("429", 0) + load.failed,
        used_tokens=used,
        tpm=tpm,
    )
