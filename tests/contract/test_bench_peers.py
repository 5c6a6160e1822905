"""The benchmark's peers are set up soundly: seen without installing any of them."""

import asyncio
import json
import os
import re
import select
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extproc.demo.envoy_binary import envoy_command
from extproc.demo.fake_provider import FakeProvider
from tests.bench.load import ResponseReader
from tests.bench.peers import (
    PEERS,
    STREAM_CONNECTIONS,
    WrongAnswerError,
    check_answers,
    check_limiter,
    measure_peers,
    measure_phase,
)
from tests.bench.peers_gateway import gateway_config
from tests.bench.peers_install import installed_environment, lock_file
from tests.bench.peers_litellm import litellm_config
from tests.bench.peers_ratelimit import limits_config, ratelimit_envoy_config
from tests.bench.peers_rig import CHUNKS, HIGH_RPM, LOW_LIMIT, Order, Peer, front, front_config
from tests.bench.peers_table import table
from tests.bench.systems import upstream
from tests.bench.traffic import chat_body

# An answer that comes too early takes about a millisecond.
_EARLY_SECONDS = 0.3
UPSTREAM = "http://127.0.0.1:9"
CONFIGS = {
    "front": front_config(UPSTREAM, port=8001, admin_port=8002),
    "ratelimit": ratelimit_envoy_config(
        UPSTREAM, socket=Path("/tmp/limits.sock"), port=8001, admin_port=8002
    ),
}


def accepts(config: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "envoy.json"
    path.write_text(json.dumps(config))
    command = envoy_command(path, validate=True)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", CONFIGS)
def test_envoy_accepts_what_peers_are_run_with(name: str, tmp_path: Path) -> None:
    done = accepts(CONFIGS[name], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    fake = FakeProvider()
    await fake.start(0)
    yield fake
    await fake.stop()


def as_peer(provider: FakeProvider, *, script: str = "", stream_script: str = "") -> Peer:
    """The provider itself in the place of a peer: it limits nothing."""
    plain = Order(key="any", body=chat_body(), script=script)
    return Peer(
        name="none",
        version="0",
        port=provider.port,
        pid=os.getpid(),
        redis_url="redis://127.0.0.1:1",
        plain=plain,
        stream=Order(key="any", body=chat_body(stream=True), script=stream_script),
        limited=plain,
    )


async def test_a_peer_that_refuses_nothing_is_not_measured(provider: FakeProvider) -> None:
    with pytest.raises(WrongAnswerError, match="2 a minute"):
        await asyncio.to_thread(check_limiter, as_peer(provider))


async def test_a_peer_that_shortens_streams_is_not_measured(provider: FakeProvider) -> None:
    whole, short = f"output={CHUNKS}", f"output={CHUNKS - 50}"
    await asyncio.to_thread(check_answers, as_peer(provider, stream_script=whole))
    with pytest.raises(WrongAnswerError, match="chunks"):
        await asyncio.to_thread(check_answers, as_peer(provider, stream_script=short))


async def test_an_answer_that_is_no_200_fails_the_run(
    provider: FakeProvider, tmp_path: Path
) -> None:
    peer = as_peer(provider, script="status=429")
    with pytest.raises(WrongAnswerError, match="429"):
        await asyncio.to_thread(
            lambda: measure_phase(
                peer, peer.plain, tmp_path, connections=STREAM_CONNECTIONS, seconds=0.5
            )
        )


def read_answer(connection: socket.socket) -> bytes:
    reader, answer = ResponseReader(), b""
    while data := connection.recv(65_536):
        answer += data
        if reader.feed(data):
            return answer
    raise AssertionError(f"closed within an answer: {answer!r}")


def test_a_peer_keeps_its_connection_and_gets_streams_without_asking_by_header(
    tmp_path: Path,
) -> None:
    """Also where the body comes after the head, as Python's clients send it."""
    with (
        upstream(tmp_path) as upstream_url,
        front(upstream_url, tmp_path) as url,
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=30) as peer,
    ):
        for path, events in (("/json", 0), ("/json", 0), ("/stream", CHUNKS)):
            body = chat_body(stream=path == "/stream")
            head, end, body = Order(key="any", body=body).raw().partition(b"\r\n\r\n")
            peer.sendall(head.replace(b"POST ", b"POST " + path.encode(), 1) + end)
            # An upstream that heard the head alone would answer it and close.
            assert not select.select([peer], [], [], _EARLY_SECONDS)[0]
            peer.sendall(body)
            answer = read_answer(peer)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" not in answer
            assert answer.count(b"data: {") >= events


def limits_of(config: dict[str, Any], model: str) -> dict[str, Any]:
    (found,) = (m["litellm_params"] for m in config["model_list"] if m["model_name"] == model)
    params: dict[str, Any] = found
    return params


def test_every_peer_has_one_low_limit_to_be_seen_refusing_and_a_high_one() -> None:
    lite = litellm_config("http://127.0.0.1:1", redis_port=2)
    assert limits_of(lite, "gpt-4o-limited")["default_api_key_rpm_limit"] == LOW_LIMIT
    for model in ("gpt-4o", "gpt-4o-stream"):
        assert limits_of(lite, model)["default_api_key_rpm_limit"] == HIGH_RPM
    clients = gateway_config("http://127.0.0.1:1", redis_url="redis://x")["clients"]
    assert sorted(client["rpm"] for client in clients.values()) == [LOW_LIMIT, HIGH_RPM]
    counts = [d["rate_limit"]["requests_per_unit"] for d in limits_config()["descriptors"]]
    assert counts == [LOW_LIMIT, HIGH_RPM]
    assert HIGH_RPM < 2**32  # what envoyproxy/ratelimit can say


def test_litellm_may_not_answer_from_its_cache() -> None:
    settings = litellm_config("http://127.0.0.1:1", redis_port=2)["litellm_settings"]
    assert settings["cache"] is True
    assert settings["cache_params"]["supported_call_types"] == []


@pytest.mark.parametrize(("name", "holds"), [("litellm", "litellm"), ("gateway", "limits")])
def test_what_is_installed_is_pinned_with_hashes(name: str, holds: str) -> None:
    blocks = re.split(r"^(?=\S)", lock_file(name).read_text(), flags=re.MULTILINE)
    packages = [block for block in blocks if block.strip()]
    assert any(block.startswith(f"{holds}==") for block in packages)
    for block in packages:
        assert re.match(r"[\w.-]+==\S+", block), block
        assert "--hash=sha256:" in block, block


def test_a_peer_that_is_missing_is_named_and_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENWEIR_TEST_PEERS", str(tmp_path / "nothing"))
    values = measure_peers(UPSTREAM, tmp_path, seconds=1)
    assert sorted(values) == sorted(f"{name}.skipped" for name in PEERS)
    assert all("make bench-peers" in str(value) for value in values.values())
    assert "LiteLLM: skipped, not installed" in table(values)


def test_an_environment_of_another_lock_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENWEIR_TEST_PEERS", str(tmp_path))
    stamp = tmp_path / "gateway" / ".installed"
    stamp.parent.mkdir()
    stamp.write_text("of last year")
    with pytest.raises(RuntimeError, match="make bench-peers"):
        installed_environment("gateway")
