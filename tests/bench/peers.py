"""``python -m tests.bench.peers``: what users would run instead of tokenweir, measured like it.

The same load generator, upstream and requests as in ``tests.bench``: chats of 1 KB on 32
connections and on one, streams of 200 chunks on 8. ``make bench-peers`` installs the peers first;
one that is not installed is named and skipped. Every peer's limiter is seen to refuse before it is
measured, and any answer that is no 200 while it is measured fails the run.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

from tests.bench.load import LoadResult
from tests.bench.measure import Machine, cpu_seconds, generate_load
from tests.bench.peers_gateway import gateway
from tests.bench.peers_install import NotInstalledError
from tests.bench.peers_litellm import litellm
from tests.bench.peers_ratelimit import ratelimit
from tests.bench.peers_rig import CHUNKS, LOW_LIMIT, Order, Peer, Start
from tests.bench.peers_table import table
from tests.bench.systems import upstream

CONNECTIONS, STREAM_CONNECTIONS = 32, 8
_DEFAULT_SECONDS = 7.0
# Parts of --seconds, as in ``tests.bench``; a peer imports and compiles on its first requests.
_SINGLE_SHARE, _STREAM_SHARE, _WARM_UP_SHARE = 0.5, 0.75, 0.3
# Peers count tokens and write logs after the answer. That work belongs to the requests, so it is
# waited for until their processes rest: this much CPU in this time, or the deadline.
_REST_SECONDS, _REST_CPU_SECONDS, _REST_DEADLINE_SECONDS = 0.25, 0.02, 10.0

# Chats whose commands to Redis are watched one by one, and the command that ends it.
_WATCHED, _MARK = 10, "peers-bench-end"

PEERS: Mapping[str, Start] = {"litellm": litellm, "gateway": gateway, "ratelimit": ratelimit}


class WrongAnswerError(RuntimeError):
    """A peer did not answer as it should: what was measured would mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Seconds of CPU, and reads from its clients' sockets that Redis counted since it started."""

    cpu: float
    envoy_cpu: float
    reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one phase cost, each for one complete answer."""

    load: LoadResult
    cpu_us: float
    envoy_cpu_us: float
    reads: float


def _used(peer: Peer) -> float:
    return cpu_seconds(peer.pid) + (cpu_seconds(peer.envoy_pid) if peer.envoy_pid else 0.0)


def _rest(peer: Peer) -> None:
    """Wait until the peer has nothing left to do."""
    until = time.monotonic() + _REST_DEADLINE_SECONDS
    before = _used(peer)
    while time.monotonic() < until:
        time.sleep(_REST_SECONDS)
        now = _used(peer)
        if now - before <= _REST_CPU_SECONDS:
            return
        before = now


def _counts(peer: Peer, client: "redis.Redis") -> _Counts:
    stats = client.info("stats")
    return _Counts(
        cpu=cpu_seconds(peer.pid),
        envoy_cpu=cpu_seconds(peer.envoy_pid) if peer.envoy_pid else 0.0,
        reads=stats["total_reads_processed"],
    )


def _check(peer: Peer, load: LoadResult) -> LoadResult:
    if load.not_200:
        raise WrongAnswerError(
            f"{peer.name}: {load.not_200} of {load.requests} answers were no 200: {load.statuses}"
        )
    return load


def measure_phase(
    peer: Peer, order: Order, directory: Path, *, connections: int, seconds: float
) -> Cost:
    """Load the peer, and divide what that cost by the answers. Raises WrongAnswerError."""

    def load(length: float) -> LoadResult:
        result = generate_load(
            peer.port, order.raw(), directory, connections=connections, seconds=length
        )
        return _check(peer, result)

    load(seconds * _WARM_UP_SHARE)
    _rest(peer)
    with redis.Redis.from_url(peer.redis_url) as client:
        _counts(peer, client)  # connects, which takes commands too
        before = _counts(peer, client)
        result = load(seconds)
        _rest(peer)
        after = _counts(peer, client)
    count = result.requests
    return Cost(
        load=result,
        cpu_us=(after.cpu - before.cpu) / count * 1e6,
        envoy_cpu_us=(after.envoy_cpu - before.envoy_cpu) / count * 1e6,
        reads=(after.reads - before.reads - 1) / count,
    )


def check_limiter(peer: Peer) -> None:
    """The limiter is on: under a low limit a request is admitted, and one of the next refused.

    Twice the limit and one more, because a new minute may begin within.
    """
    statuses = [peer.limited.send(peer.port)[0] for _ in range(2 * LOW_LIMIT + 1)]
    if statuses[0] != 200 or 429 not in statuses or set(statuses) != {200, 429}:
        raise WrongAnswerError(f"{peer.name}: {LOW_LIMIT} a minute were answered with {statuses}")


def check_answers(peer: Peer) -> None:
    """A chat is answered with its usage, a stream with all its chunks and its end."""
    status, text = peer.plain.send(peer.port)
    if status != 200 or not json.loads(text).get("usage"):
        raise WrongAnswerError(f"{peer.name}: status {status} and no usage in {text[:200]!r}")
    status, text = peer.stream.send(peer.port)
    events = [line for line in text.splitlines() if line.startswith("data: {")]
    if status != 200 or len(events) < CHUNKS or "data: [DONE]" not in text:
        raise WrongAnswerError(f"{peer.name}: status {status}, {len(events)} chunks in a stream")


def _redis_commands(peer: Peer) -> float:
    """Commands that the peer sends Redis for a chat, seen by MONITOR; what scripts run is no
    command of the peer's."""
    count = 0
    with (
        redis.Redis.from_url(peer.redis_url) as client,
        redis.Redis.from_url(peer.redis_url, decode_responses=True) as watcher,
    ):
        client.ping()  # connects, which takes commands too
        with watcher.monitor() as seen:
            for _ in range(_WATCHED):
                if (status := peer.plain.send(peer.port)[0]) != 200:
                    raise WrongAnswerError(f"{peer.name}: status {status}")
            _rest(peer)
            client.echo(_MARK)
            for command in seen.listen():
                if _MARK in command["command"]:
                    break
                count += command["client_type"] != "lua"
    return count / _WATCHED


def _memory_mb(pid: int) -> float:
    root = psutil.Process(pid)
    used: int = sum(p.memory_info().rss for p in (root, *root.children(recursive=True)))
    return used / 1e6


def _measure_peer(peer: Peer, directory: Path, *, seconds: float) -> dict[str, float | str]:
    check_answers(peer)
    check_limiter(peer)
    loaded = measure_phase(peer, peer.plain, directory, connections=CONNECTIONS, seconds=seconds)
    single = measure_phase(
        peer, peer.plain, directory, connections=1, seconds=seconds * _SINGLE_SHARE
    )
    stream = measure_phase(
        peer,
        peer.stream,
        directory,
        connections=STREAM_CONNECTIONS,
        seconds=seconds * _STREAM_SHARE,
    )
    commands = _redis_commands(peer)
    cpu = "cpu_us" if peer.envoy_pid else "python_cpu_us"
    values: dict[str, float | str] = {
        "version": peer.version,
        cpu: loaded.cpu_us,
        "rps": loaded.load.per_second,
        "loaded_p50_ms": loaded.load.p50_ms,
        "p50_ms": single.load.p50_ms,
        "p99_ms": single.load.p99_ms,
        "memory_mb": _memory_mb(peer.pid),
        "redis_commands_per_request": commands,
        "redis_reads_per_request": single.reads,
        "stream200_cpu_us": stream.cpu_us,
        "stream200_rps": stream.load.per_second,
        "requests": loaded.load.requests + single.load.requests + stream.load.requests,
    }
    if peer.envoy_pid:
        values["envoy_cpu_us"] = loaded.envoy_cpu_us
        values["stream200_envoy_cpu_us"] = stream.envoy_cpu_us
    return {f"{peer.name}.{key}": value for key, value in values.items()}


def measure_peers(upstream_url: str, directory: Path, *, seconds: float) -> dict[str, float | str]:
    """All installed peers, one after the other, each with processes of its own.

    ``upstream_url``: as ``tests.bench.systems.upstream`` gives it. ``seconds``: length of the
    measurement with 32 connections. Keys are ``PEER.FIGURE``; a peer that is missing has only
    ``PEER.skipped``, the reason. Raises WrongAnswerError, ChildError, TimeoutError.
    """
    values: dict[str, float | str] = {}
    for name, start in PEERS.items():
        try:
            with start(upstream_url, directory) as peer:
                values |= _measure_peer(peer, directory, seconds=seconds)
        except NotInstalledError as error:
            values[f"{name}.skipped"] = f"not installed: {error}"
    return values


def main() -> int:
    """Exit status 1 when a peer did not start or did not answer as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers")
    parser.add_argument("--seconds", type=float, default=_DEFAULT_SECONDS)
    parser.add_argument("--output", type=Path, default=Path("build/peers.json"))
    args = parser.parse_args()
    machine = Machine()
    try:
        with tempfile.TemporaryDirectory(prefix="peers-") as name:
            directory = Path(name)
            with upstream(directory) as url:
                values = measure_peers(url, directory, seconds=args.seconds)
    except (RuntimeError, TimeoutError) as error:  # a ChildError is one
        print(f"peers: {error}", file=sys.stderr)
        return 1
    values["machine.others_percent"] = machine.others_percent()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(values, indent=2) + "\n")
    print(table(values))
    print(json.dumps(values, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
