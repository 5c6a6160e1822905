"""The gateway of ``peers_gateway_app`` as a peer: one uvicorn worker, and a Valkey of its own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extproc.demo.processes import free_ports
from tests.bench.peers_install import installed_environment
from tests.bench.peers_litellm import installed_version
from tests.bench.peers_rig import (
    HIGH_RPM,
    HIGH_TPM,
    LOW_LIMIT,
    Order,
    Peer,
    front,
    running_peer,
    valkey,
)
from tests.bench.running import answers
from tests.bench.traffic import MODEL, PATH, chat_body

_KEY, _LIMITED_KEY = "sk-bench", "sk-limited"
_STREAM_MODEL = f"{MODEL}-stream"
_PARTS = ("starlette", "uvicorn", "httpx", "limits")
_APP = Path(__file__).with_name("peers_gateway_app.py")
# The variable that the application reads; its module imports what we do not have.
_CONFIG_VARIABLE = "GATEWAY_CONFIG"


def gateway_config(front_url: str, *, redis_url: str) -> dict[str, Any]:
    """What the application reads from its environment."""
    return {
        "redis_url": redis_url,
        "models": {MODEL: f"{front_url}/json{PATH}", _STREAM_MODEL: f"{front_url}/stream{PATH}"},
        "clients": {
            _KEY: {"rpm": HIGH_RPM, "tpm": HIGH_TPM},
            _LIMITED_KEY: {"rpm": LOW_LIMIT, "tpm": HIGH_TPM},
        },
    }


def _streamed() -> bytes:
    return json.dumps({**json.loads(chat_body(stream=True)), "model": _STREAM_MODEL}).encode()


@contextmanager
def gateway(upstream_url: str, directory: Path) -> Iterator[Peer]:
    """The gateway until the block ends. Raises NotInstalledError, ChildError."""
    binaries = installed_environment("gateway")
    version = ", ".join(f"{part} {installed_version(binaries, part)}" for part in _PARTS)
    (port,) = free_ports(1)
    with valkey(directory) as redis_port, front(upstream_url, directory) as front_url:
        redis_url = f"redis://127.0.0.1:{redis_port}"
        config = gateway_config(front_url, redis_url=redis_url)
        command = [str(binaries / "uvicorn"), "--app-dir", str(_APP.parent), "--factory"]
        command += [f"{_APP.stem}:create", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--loop", "uvloop", "--http", "httptools"]
        command += ["--no-access-log", "--log-level", "warning"]
        url = f"http://127.0.0.1:{port}/health"
        env = {_CONFIG_VARIABLE: json.dumps(config)}
        with running_peer(
            "gateway", command, directory, is_ready=lambda: answers(url), env=env
        ) as pid:
            yield Peer(
                name="gateway",
                version=version,
                port=port,
                pid=pid,
                redis_url=redis_url,
                plain=Order(key=_KEY, body=chat_body()),
                stream=Order(key=_KEY, body=_streamed()),
                limited=Order(key=_LIMITED_KEY, body=chat_body()),
            )
