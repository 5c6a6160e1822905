"""What every peer needs to run: its processes, a Valkey, an upstream that it can keep connections
to, and the requests that are sent to it."""

import http.client
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from extproc.demo.processes import clean_environment, free_ports
from extproc.demo.provider_script import SCRIPT_HEADER
from extproc.demo.stack import demo_key
from extproc.demo.valkey import valkey_command
from tests.bench.running import running, running_envoy
from tests.bench.systems import SERVICE
from tests.bench.traffic import PATH, raw_request

CHUNKS = 200
STREAM_SCRIPT = f"output={CHUNKS};chunk_delay_ms=2"
# The set-up sends a few requests under the low limit, to see one refused.
LOW_LIMIT = 2
# What the load is checked against and never reaches. envoyproxy/ratelimit has 32 bits for it.
HIGH_RPM, HIGH_TPM = 2_000_000_000, 1_000_000_000_000
# LiteLLM imports for ten seconds on a free machine, and for two minutes on a busy one.
_READY_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_TYPES = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One kind of request: the client's key, its JSON, and a script for the fake provider."""

    key: str
    body: bytes
    script: str = ""

    def raw(self) -> bytes:
        """The bytes that the load generator sends."""
        request = raw_request(SERVICE, self.body, script=self.script)
        return request.replace(demo_key(SERVICE).encode(), self.key.encode(), 1)

    def send(self, port: int) -> tuple[int, str]:
        """Send it once on a connection of its own: the status and the whole body."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        if self.script:
            headers[SCRIPT_HEADER] = self.script
        try:
            connection.request("POST", PATH, self.body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer while it runs. ``pid`` is the process that limits, ``envoy_pid`` its Envoy if any.

    ``limited`` is under ``LOW_LIMIT`` requests a minute, ``plain`` and ``stream`` under limits that
    nothing reaches.
    """

    name: str
    version: str
    port: int
    pid: int
    redis_url: str
    plain: Order
    stream: Order
    limited: Order
    envoy_pid: int | None = None


# Upstream's URL and a folder to write to; the peer runs until the block ends.
Start = Callable[[str, Path], AbstractContextManager[Peer]]


def peer_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what belongs to our own Python, and ``more``."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {key: value for key, value in clean_environment().items() if key not in ours}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **more}


@contextmanager
def running_peer(
    name: str,
    command: list[str],
    directory: Path,
    *,
    is_ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """``running`` with a peer's environment and patience."""
    theirs = peer_environment(env or {})
    with running(
        name, command, directory, is_ready=is_ready, env=theirs, ready_seconds=_READY_SECONDS
    ) as pid:
        yield pid


@contextmanager
def valkey(directory: Path) -> Iterator[int]:
    """A Valkey of the peer's own, empty; gives its port."""
    (port,) = free_ports(1)
    log = directory / "peer-valkey.log"

    def is_ready() -> bool:
        return "Ready to accept connections" in log.read_text(errors="replace")

    log.unlink(missing_ok=True)
    command = valkey_command(port, directory)
    with running_peer("peer-valkey", command, directory, is_ready=is_ready):
        yield port


def socket_address(port: int) -> dict[str, Any]:
    """A loopback address as Envoy spells it."""
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def cluster(name: str, address: dict[str, Any], *, http2: bool = False) -> dict[str, Any]:
    """A cluster of one endpoint whose limits the load does not reach."""
    most = {"max_connections": 65_536, "max_pending_requests": 65_536, "max_requests": 65_536}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address}}]}
    made: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {"cluster_name": name, "endpoints": [endpoint]},
    }
    if http2:
        options = {
            "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
        key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        made["typed_extension_protocol_options"] = {key: options}
    return made


def http_filter(name: str, kind: str, **fields: object) -> dict[str, Any]:
    """An HTTP filter of Envoy by its message below ``envoy.extensions.filters.http``."""
    return {"name": name, "typed_config": {"@type": f"{_TYPES}.filters.http.{kind}", **fields}}


def envoy_config(
    *,
    port: int,
    admin_port: int,
    routes: list[dict[str, Any]],
    before_router: list[dict[str, Any]],
    clusters: list[dict[str, Any]],
) -> dict[str, Any]:
    """One listener on loopback, without an access log, in front of the given routes."""
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "peers",
        "use_remote_address": True,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [*before_router, http_filter("router", "router.v3.Router")],
    }
    chain = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {
        "name": "peers",
        "address": socket_address(port),
        "filter_chains": [{"filters": chain}],
    }
    return {
        "admin": {"address": socket_address(admin_port)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def upstream_cluster(upstream_url: str) -> dict[str, Any]:
    """The run's upstream as a cluster named ``upstream``."""
    port = urlsplit(upstream_url).port
    assert port is not None
    return cluster("upstream", socket_address(port))


def front_config(upstream_url: str, *, port: int, admin_port: int) -> dict[str, Any]:
    """``/json`` leads to the upstream's JSON, ``/stream`` to its stream of ``CHUNKS``.

    For peers that drop headers which they do not know. The buffer waits for the whole request: an
    Envoy that answers by itself before the body is there closes the connection, and the peers,
    which send head and body apart, would pay for a new one each time.
    """
    json_route = {
        "match": {"prefix": "/json/"},
        "route": {"cluster": "upstream", "prefix_rewrite": "/", "timeout": "60s"},
    }
    script = {"header": {"key": SCRIPT_HEADER, "value": STREAM_SCRIPT}}
    stream_route = {
        "match": {"prefix": "/stream/"},
        "route": {"cluster": "upstream", "prefix_rewrite": "/", "timeout": "60s"},
        "request_headers_to_add": [{**script, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    return envoy_config(
        port=port,
        admin_port=admin_port,
        routes=[json_route, stream_route],
        before_router=[http_filter("buffer", "buffer.v3.Buffer", max_request_bytes=16_777_216)],
        clusters=[upstream_cluster(upstream_url)],
    )


@contextmanager
def front(upstream_url: str, directory: Path) -> Iterator[str]:
    """``front_config`` while the block runs; gives its URL."""
    port, admin_port = free_ports(2)
    config = front_config(upstream_url, port=port, admin_port=admin_port)
    with running_envoy("peer-front", config, directory):
        yield f"http://127.0.0.1:{port}"


def build_directory() -> Path:
    """Where ``make bench-peers`` installs; TOKENWEIR_TEST_PEERS names another folder."""
    return Path(os.environ.get("TOKENWEIR_TEST_PEERS", "build/peers")).absolute()
