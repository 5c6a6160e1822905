"""Overshoot: many requests at once on one key whose limit fits only some of them.

Several server processes behind one Envoy share one Valkey. Answers have lengths as answers have
them, and none is given before the last request is decided: nothing comes back meanwhile.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import redis

from extproc.demo.stack import Stack
from extproc.envoyconfig.messages import TOKENWEIR_CLUSTER
from extproc.stores import keys
from tests.bench.burst import BurstResult, Gate, allow_connections, send_at_once
from tests.bench.running import fetch
from tests.bench.traffic import chat_body, raw_request
from tests.support.reservations import Inspector

SENT = 1000
SERVERS = 3
_NORMAL = NormalDist()
# The cap that strict mode writes into requests; one answer in 120 would be longer.
PLATFORM_CAP_TOKENS = 1024
SERVICE = "svc-overshoot"
# Of what a request uses on average, about half fits.
_LIMIT_TOKENS_PER_REQUEST = 200
# Answers by which estimates are learnt.
_WARM_UP = 400
_SETTLED_SECONDS = 20.0

ESTIMATES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "strict": {
            "TOKENWEIR_ADMISSION__ESTIMATE": "strict",
            "TOKENWEIR_ADMISSION__PLATFORM_CAP_TOKENS": str(PLATFORM_CAP_TOKENS),
        },
        "p95": {
            "TOKENWEIR_ADMISSION__ESTIMATE": "quantile",
            "TOKENWEIR_ADMISSION__ESTIMATE_QUANTILE": "0.95",
        },
        "mean": {"TOKENWEIR_ADMISSION__ESTIMATE": "mean"},
    }
)
# So many requests at once take two cores longer than a proxy would wait in production, where the
# last of them would meet a 503 instead of a decision. Here every one of them is to be decided.
_PATIENT_SERVERS = {
    "TOKENWEIR_ADMISSION__TIMEOUT_MS": "30000",
    "TOKENWEIR_REDIS__TIMEOUT_MS": "10000",
}
_PATIENT_ENVOY = {"admission_timeout_ms": 30_000, "metering_timeout_ms": 30_000}


def answer_tokens(number: int) -> int:
    """The length of the answer to request ``number``: log-normal, median 150, mean about 205, and
    one in twenty above 560. The golden ratio spreads any run of numbers evenly."""
    share = (0.5 + number * 0.6180339887498949) % 1
    return max(1, round(150 * math.exp(0.8 * _NORMAL.inv_cdf(share))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overshoot:
    """What came of one burst; tokens are of the admitted requests.

    ``used_tokens`` is the provider's own count, ``counted_tokens`` what the limit's counter holds
    in the end, ``left_open`` how many nobody settled. ``unused_tokens`` were reserved and not used,
    request by request; ``exceeded`` requests used more than was reserved for them. ``asked`` is how
    many calls each server process got.
    """

    burst: BurstResult
    sent: int
    limit_tokens: int
    used_tokens: int
    counted_tokens: int
    left_open: int
    reserved_tokens: int
    unused_tokens: int
    exceeded: int
    asked: tuple[int, ...]

    @property
    def other(self) -> int:
        """Neither admitted nor refused: there should be none."""
        return self.sent - self.burst.admitted - self.burst.refused

    @property
    def overshoot_tokens(self) -> int:
        """Tokens used beyond the limit."""
        return max(0, self.used_tokens - self.limit_tokens)

    @property
    def fits(self) -> int:
        """How many requests may be admitted by what each of them takes, which is the same."""
        return self.limit_tokens * self.burst.admitted // max(1, self.reserved_tokens)

    @property
    def overshoot_requests(self) -> int:
        """Requests admitted beyond those that fit, whatever they used."""
        return max(0, self.burst.admitted - self.fits)


def overshoot_stack(estimate: str, *, sent: int = SENT, servers: int = SERVERS) -> Stack:
    """Not started yet. ``estimate`` is a key of ESTIMATES."""
    allow_connections(sent)
    return Stack(
        services=(SERVICE,),
        servers=servers,
        serve_env={**ESTIMATES[estimate], **_PATIENT_SERVERS},
        envoy_options={**_PATIENT_ENVOY, "access_log_path": None},
        with_work=False,
    )


def measure_overshoot(
    stack: Stack,
    label: str,
    *,
    sent: int = SENT,
    learns: bool,
    answers: Callable[[int], int] = answer_tokens,
) -> Overshoot:
    """Send one burst, known by a ``label`` of its own, to a running stack.

    ``learns``: estimates are learnt from answers before. ``answers`` are the lengths that the
    provider's answers to requests 0, 1 ... would have without a cap.
    """
    limit_tokens = sent * _LIMIT_TOKENS_PER_REQUEST
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as client:
        if learns:
            _learn(stack, client)
        # A policy of another name has a counter of its own.
        _apply(stack, label, limit_tokens)
        before = _asked(stack)
        script = f"label={label};gate={label}"
        requests = [_request(script, answers(number)) for number in range(sent)]
        burst = asyncio.run(
            send_at_once(stack.envoy_port, requests, gate=Gate(stack.provider_url, label))
        )
        asked = tuple(now - then for now, then in zip(_asked(stack), before, strict=True))
        left_open = _wait_settled(client)
        counter = keys.window(SERVICE, f"{label}.total_tpm.service:{SERVICE}")
        counted_tokens = int(str(client.hget(keys.amounts(counter), "sum") or 0))
        used, reserved = _used(stack, label), _reserved(client)
    return Overshoot(
        burst=burst,
        sent=sent,
        limit_tokens=limit_tokens,
        used_tokens=sum(used.values()),
        counted_tokens=counted_tokens,
        left_open=left_open,
        reserved_tokens=sum(reserved.get(request, 0) for request in used),
        unused_tokens=sum(max(0, reserved.get(request, 0) - used[request]) for request in used),
        exceeded=sum(used[request] > reserved.get(request, 0) for request in used),
        asked=asked,
    )


def _request(script: str, output_tokens: int) -> bytes:
    """Without a cap: what the answer will be is not known to anybody."""
    script = f"{script};output={output_tokens}"
    return raw_request(SERVICE, chat_body(max_tokens=None), script=script)


def _apply(stack: Stack, name: str, limit_tokens: int) -> None:
    """A policy root whose only policy is this one. A sliding window: a burst that begins at the end
    of a minute is as good as any other."""
    rule = {"dimension": "total_tpm", "limit": limit_tokens, "algorithm": "sliding"}
    policy = {"name": name, "scope": "service", "value": SERVICE, "rules": [rule]}
    file = Path(stack.run_dir) / f"{name}.yaml"
    file.write_text(json.dumps({"root": SERVICE, "policies": [policy]}))  # JSON is YAML
    stack.cli("limits", "apply", "-f", str(file))


def _learn(stack: Stack, client: redis.Redis) -> None:
    """Answers go through the whole chain, and settling them writes the history. Estimates are of
    full minutes, so the current one is then made an earlier one, instead of waiting for its end."""
    _apply(stack, "warm-up", 10**9)
    numbers = range(SENT, SENT + _WARM_UP)
    requests = [_request("label=warm-up", answer_tokens(number)) for number in numbers]
    answered = asyncio.run(send_at_once(stack.envoy_port, requests)).admitted
    if answered < _WARM_UP:
        raise RuntimeError(f"{answered} of {_WARM_UP} requests of the warm-up were answered")
    if left := _wait_settled(client):
        raise RuntimeError(f"{left} reservations of the warm-up were not settled")
    prefix, inspector = keys.output_prefix(SERVICE), Inspector(client, SERVICE)
    now, earlier = inspector.minute(), inspector.minute(back=5)
    for written in list(client.scan_iter(f"{prefix}*{now}", count=1000)):
        client.rename(written, written.removesuffix(now) + earlier)
    # "Nothing is known yet", as worked out for this minute.
    for kept in list(client.scan_iter(f"{prefix}*expected:*", count=1000)):
        client.delete(kept)


def _wait_settled(client: redis.Redis) -> int:
    """How many reservations are still open when none should be."""
    give_up = time.monotonic() + _SETTLED_SECONDS
    while (left := client.zcard(keys.pending(SERVICE))) and time.monotonic() < give_up:
        time.sleep(0.02)
    return int(left)


def _used(stack: Stack, label: str) -> dict[str, int]:
    """Tokens of each request of the burst that reached the provider, by Envoy's request id."""
    journal: list[dict[str, Any]] = json.loads(fetch(f"{stack.provider_url}/_fake/journal"))
    return {
        entry["request_id"]: entry["input_tokens"] + entry["output_tokens_produced"]
        for entry in journal
        if entry["label"] == label
    }


def _reserved(client: redis.Redis) -> dict[str, int]:
    """Tokens that were reserved for each request, by Envoy's request id."""
    names = client.scan_iter(keys.reservation_prefix(SERVICE) + "*", count=1000)
    found: list[Any] = [client.hmget(name, "request_id", "reserved") for name in names]
    return {request_id: int(reserved) for request_id, reserved in found}


def _asked(stack: Stack) -> list[int]:
    """Calls that Envoy has sent to each server process so far, by its own counters."""
    lines = fetch(f"{stack.admin_url}/clusters").decode().splitlines()
    found = [line.split("::") for line in lines]
    return [int(f[3]) for f in found if f[0] == TOKENWEIR_CLUSTER and f[2:3] == ["rq_total"]]
