"""envoyproxy/ratelimit as a peer: Envoy's rate limit filter, its Go server, a Valkey.

One descriptor, the client's key, by the minute. It counts requests and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from extproc.demo.processes import free_ports
from tests.bench.peers_install import RATELIMIT_VERSION, installed_ratelimit
from tests.bench.peers_rig import (
    HIGH_RPM,
    LOW_LIMIT,
    STREAM_SCRIPT,
    Order,
    Peer,
    cluster,
    envoy_config,
    http_filter,
    running_peer,
    upstream_cluster,
    valkey,
)
from tests.bench.running import answers, running_envoy
from tests.bench.traffic import chat_body

_KEY, _LIMITED_KEY = "sk-bench", "sk-limited"
_DOMAIN = "llm"


def limits_config() -> dict[str, Any]:
    """The server's own file: a low limit for one key, a high one for every other."""
    low = {"unit": "minute", "requests_per_unit": LOW_LIMIT}
    high = {"unit": "minute", "requests_per_unit": HIGH_RPM}
    return {
        "domain": _DOMAIN,
        "descriptors": [
            {"key": "client", "value": f"Bearer {_LIMITED_KEY}", "rate_limit": low},
            {"key": "client", "rate_limit": high},
        ],
    }


def ratelimit_envoy_config(
    upstream_url: str, *, socket: Path, port: int, admin_port: int
) -> dict[str, Any]:
    """Envoy with the rate limit filter, which asks the server on a unix socket.

    A question that fails or takes a second is an error, so that no load runs past the limiter.
    """
    service = {
        "grpc_service": {"envoy_grpc": {"cluster_name": "ratelimit"}},
        "transport_api_version": "V3",
    }
    limiter = http_filter(
        "ratelimit",
        "ratelimit.v3.RateLimit",
        domain=_DOMAIN,
        timeout="1s",
        failure_mode_deny=True,
        rate_limit_service=service,
    )
    by_key = {"request_headers": {"header_name": "authorization", "descriptor_key": "client"}}
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "upstream",
            "timeout": "60s",
            "rate_limits": [{"actions": [by_key]}],
        },
    }
    return envoy_config(
        port=port,
        admin_port=admin_port,
        routes=[route],
        before_router=[limiter],
        clusters=[
            upstream_cluster(upstream_url),
            cluster("ratelimit", {"pipe": {"path": str(socket)}}, http2=True),
        ],
    )


def _environment(directory: Path, *, port: int, debug: int, redis: int) -> dict[str, str]:
    return {
        "LOG_LEVEL": "warn",
        "USE_STATSD": "false",
        "DISABLE_STATS": "true",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": str(debug),
        "GRPC_UDS": str(_socket(directory)),
        "BACKEND_TYPE": "redis",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis}",
        "RUNTIME_ROOT": str(directory),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
    }


def _socket(directory: Path) -> Path:
    return directory / "ratelimit.sock"


@contextmanager
def ratelimit(upstream_url: str, directory: Path) -> Iterator[Peer]:
    """The server and its Envoy until the block ends. Raises NotInstalledError, ChildError."""
    binary = installed_ratelimit()
    _socket(directory).unlink(missing_ok=True)  # of an earlier run in this folder
    config = directory / "ratelimit" / "config" / "llm.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(limits_config()))
    port, health_port, debug_port, admin_port = free_ports(4)
    envoy_settings = ratelimit_envoy_config(
        upstream_url, socket=_socket(directory), port=port, admin_port=admin_port
    )
    health = f"http://127.0.0.1:{health_port}/healthcheck"
    with valkey(directory) as redis_port:
        env = _environment(directory, port=health_port, debug=debug_port, redis=redis_port)
        with (
            running_peer(
                "ratelimit-server",
                [str(binary)],
                directory,
                is_ready=lambda: answers(health),
                env=env,
            ) as pid,
            running_envoy("ratelimit-envoy", envoy_settings, directory) as envoy_pid,
        ):
            yield Peer(
                name="ratelimit",
                version=RATELIMIT_VERSION,
                port=port,
                pid=pid,
                envoy_pid=envoy_pid,
                redis_url=f"redis://127.0.0.1:{redis_port}",
                plain=Order(key=_KEY, body=chat_body()),
                stream=Order(key=_KEY, body=chat_body(stream=True), script=STREAM_SCRIPT),
                limited=Order(key=_LIMITED_KEY, body=chat_body()),
            )
