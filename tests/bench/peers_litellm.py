"""LiteLLM's proxy as a peer: one worker, its v3 rate limiter on Valkey, the run's upstream.

Its keys with limits of their own need PostgreSQL. The limits here are those of a model for each
key (``default_api_key_rpm_limit``, ``default_api_key_tpm_limit``), which need no database and go
through the same limiter, tokens reserved before the call included. The key is the master key.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from extproc.demo.processes import free_ports, run_to_end
from tests.bench.peers_install import installed_environment
from tests.bench.peers_rig import (
    HIGH_RPM,
    HIGH_TPM,
    LOW_LIMIT,
    Order,
    Peer,
    front,
    peer_environment,
    running_peer,
    valkey,
)
from tests.bench.running import answers
from tests.bench.traffic import MODEL, chat_body

_KEY = "sk-bench"
_STREAM_MODEL, _LIMITED_MODEL = f"{MODEL}-stream", f"{MODEL}-limited"
# As its own page on production advises; the rest keeps it from asking the internet for tables that
# its package has too.
_ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def _model(name: str, url: str, *, rpm: int) -> dict[str, Any]:
    limits = {"default_api_key_rpm_limit": rpm, "default_api_key_tpm_limit": HIGH_TPM}
    provider = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "sk-upstream"}
    return {"model_name": name, "litellm_params": {**provider, **limits}}


def litellm_config(front_url: str, *, redis_port: int) -> dict[str, Any]:
    """Its config.yaml. Answers are not cached: ``cache`` is what gives the limiter its Redis."""
    redis = {"type": "redis", "host": "127.0.0.1", "port": redis_port, "supported_call_types": []}
    return {
        "model_list": [
            _model(MODEL, f"{front_url}/json", rpm=HIGH_RPM),
            _model(_STREAM_MODEL, f"{front_url}/stream", rpm=HIGH_RPM),
            _model(_LIMITED_MODEL, f"{front_url}/json", rpm=LOW_LIMIT),
        ],
        "litellm_settings": {"cache": True, "cache_params": redis, "num_retries": 0},
        "general_settings": {"master_key": _KEY},
    }


def _order(model: str, *, stream: bool = False) -> Order:
    body = {**json.loads(chat_body(stream=stream)), "model": model}
    return Order(key=_KEY, body=json.dumps(body).encode())


def installed_version(binaries: Path, distribution: str) -> str:
    """The version of a distribution in another virtual environment."""
    program = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    command = [str(binaries / "python"), "-c", program, distribution]
    return run_to_end(distribution, command, env=peer_environment({})).strip()


@contextmanager
def litellm(upstream_url: str, directory: Path) -> Iterator[Peer]:
    """LiteLLM until the block ends. Raises NotInstalledError, ChildError."""
    binaries = installed_environment("litellm")
    version = installed_version(binaries, "litellm")
    (port,) = free_ports(1)
    with valkey(directory) as redis_port, front(upstream_url, directory) as front_url:
        config = directory / "litellm.yaml"
        config.write_text(yaml.safe_dump(litellm_config(front_url, redis_port=redis_port)))
        command = [str(binaries / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        url = f"http://127.0.0.1:{port}/health/liveliness"
        with running_peer(
            "litellm", command, directory, is_ready=lambda: answers(url), env=_ENVIRONMENT
        ) as pid:
            yield Peer(
                name="litellm",
                version=version,
                port=port,
                pid=pid,
                redis_url=f"redis://127.0.0.1:{redis_port}",
                plain=_order(MODEL),
                stream=_order(_STREAM_MODEL, stream=True),
                limited=_order(_LIMITED_MODEL),
            )
