"""The systems that are measured, each with an Envoy of its own.

* ``bare``: Envoy with a listener, one route and the upstream, no filter but the router.
* ``empty``: Envoy as tokenweir configures it for a profile, and the empty server.
* ``floor``: the same configuration, the floor server and a real Valkey.
* ``ours``: the same configuration, ``tokenweir serve`` and a real Valkey. One server speaks all
  profiles, with an Envoy for each.

All stay up together; one without load costs next to nothing.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from extproc.demo.processes import free_ports
from extproc.demo.provider_script import SCRIPT_HEADER
from extproc.demo.stack import Stack, demo_key
from extproc.demo.valkey import valkey_command
from extproc.envoyconfig import RenderOptions, render_bootstrap
from extproc.envoyconfig.options import Profile
from extproc.stores import keys
from tests.bench.running import fetch, running, running_envoy
from tests.bench.traffic import answer_body

__all__ = [
    "PROFILES",
    "SERVICE",
    "System",
    "bare",
    "empty",
    "envoy_messages",
    "fetch",
    "floor",
    "ours",
    "seeded_valkey",
    "upstream",
]

PROFILES: tuple[Profile, ...] = ("inline", "observe", "native")
SERVICE = "svc-bench"
# Far above what a machine can send: the limits are checked, and never refuse.
_RPM, _TPM = 2_000_000_000, 1_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One measured system while it runs. Bare Envoy has no Python and no Redis."""

    name: str
    port: int
    admin_url: str
    envoy_pid: int
    python_pid: int | None = None
    redis_url: str | None = None


def _manager(config: dict[str, Any]) -> dict[str, Any]:
    """The HTTP connection manager of a rendered configuration."""
    (listener,) = config["static_resources"]["listeners"]
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _without_tokenweir(config: dict[str, Any]) -> dict[str, Any]:
    """The same listener, route and upstream cluster with nothing of ours in between."""
    manager = _manager(config)
    manager["http_filters"] = manager["http_filters"][-1:]
    del manager["access_log"]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    del route["request_headers_to_remove"]
    resources = config["static_resources"]
    resources["clusters"] = [c for c in resources["clusters"] if c["name"] == "llm_upstream"]
    return config


def _options(upstream_url: str, *, address: str, profile: Profile = "inline") -> RenderOptions:
    listen_port, admin_port = free_ports(2)
    return RenderOptions(
        upstream_url=upstream_url,
        profile=profile,
        listen_port=listen_port,
        admin_port=admin_port,
        tokenweir_addresses=(address,),
        api_keys={demo_key(SERVICE): SERVICE},
    )


@contextmanager
def upstream(directory: Path) -> Iterator[str]:
    """The provider behind every system; gives its URL. An Envoy that answers JSON by itself, which
    costs next to nothing, and passes what has a header ``x-fake`` on to ``stream_provider``."""
    port, listen_port, admin_port = free_ports(3)
    options = RenderOptions(
        upstream_url=f"http://127.0.0.1:{port}",
        listen_port=listen_port,
        admin_port=admin_port,
        tokenweir_addresses=("127.0.0.1:1",),
    )
    config = _without_tokenweir(render_bootstrap(options))
    host = _manager(config)["route_config"]["virtual_hosts"][0]
    (streams,) = host["routes"]
    streams["match"]["headers"] = [{"name": SCRIPT_HEADER, "present_match": True}]
    json_type = {"header": {"key": "content-type", "value": "application/json"}}
    at_once = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": answer_body().decode()}},
        "response_headers_to_add": [{**json_type, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    host["routes"] = [streams, at_once]
    # An Envoy that answers before the body is there closes the connection.
    wait_for_body = {
        "name": "envoy.filters.http.buffer",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
            "max_request_bytes": 16_777_216,
        },
    }
    _manager(config)["http_filters"].insert(0, wait_for_body)
    command = [sys.executable, "-m", "tests.bench.stream_provider", "--port", str(port)]
    with (
        running("provider", command, directory),
        running_envoy("upstream", config, directory),
    ):
        yield f"http://127.0.0.1:{listen_port}"


@contextmanager
def bare(upstream_url: str, directory: Path) -> Iterator[System]:
    """Envoy alone."""
    options = _options(upstream_url, address="127.0.0.1:1")
    config = _without_tokenweir(render_bootstrap(options))
    with running_envoy("bare", config, directory) as pid:
        yield System(
            name="bare",
            port=options.listen_port,
            admin_url=f"http://127.0.0.1:{options.admin_port}",
            envoy_pid=pid,
        )


@contextmanager
def empty(upstream_url: str, directory: Path, profile: Profile) -> Iterator[System]:
    """Envoy and the empty server, over a unix socket as in ``ours``."""
    command = ["-m", "tests.bench.empty_server", "--profile", profile]
    with _with_envoy("empty", command, upstream_url, directory, profile) as system:
        yield system


@contextmanager
def floor(
    upstream_url: str, directory: Path, profile: Profile, step: str, redis_url: str
) -> Iterator[System]:
    """The same with the floor server, up to a step; Redis holds the limits (``seeded_valkey``)."""
    command = ["-m", "tests.bench.floor_server", "--profile", profile]
    command += ["--step", step, "--redis", redis_url]
    name = f"floor-{step}"
    with _with_envoy(name, command, upstream_url, directory, profile) as system:
        yield replace(system, redis_url=redis_url)


@contextmanager
def seeded_valkey(directory: Path) -> Iterator[str]:
    """A Valkey of its own, in which the service has the limits of ``ours``; gives its URL."""
    (port,) = free_ports(1)
    data = directory / "valkey"
    data.mkdir(parents=True)
    url = f"redis://127.0.0.1:{port}/0"
    command = valkey_command(port, data)
    with (
        running("floor-valkey", command, directory, is_ready=lambda: _answers_ping(url)),
        redis.Redis.from_url(url) as client,
    ):
        client.hset(keys.config(SERVICE), mapping={"status": "1", "rpm": _RPM, "tpm": _TPM})
        yield url


def _answers_ping(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


@contextmanager
def _with_envoy(
    kind: str, command: list[str], upstream_url: str, directory: Path, profile: Profile
) -> Iterator[System]:
    """A Python server and an Envoy of its own."""
    name = f"{kind}-{profile}"
    address = f"unix:{directory / name}.sock"
    options = _options(upstream_url, address=address, profile=profile)
    command = [sys.executable, *command, "--listen", address]
    with (
        running(name, command, directory) as python_pid,
        running_envoy(f"{name}-envoy", render_bootstrap(options), directory) as envoy_pid,
    ):
        yield System(
            name=kind,
            port=options.listen_port,
            admin_url=f"http://127.0.0.1:{options.admin_port}",
            envoy_pid=envoy_pid,
            python_pid=python_pid,
        )


def _stack(upstream_url: str, *, workers: int = 1) -> Stack:
    """``tokenweir serve``, Valkey, SQLite and an Envoy of profile inline, not started; no reaper,
    which no request waits for."""
    return Stack(
        services=(SERVICE,),
        upstream_url=upstream_url,
        envoy_options={"access_log_path": None},
        with_work=False,
        workers=workers,
    )


@contextmanager
def ours(
    upstream_url: str, directory: Path, profiles: Sequence[Profile], *, workers: int = 1
) -> Iterator[dict[Profile, System]]:
    """The whole product with an Envoy for each profile."""
    stack = _stack(upstream_url, workers=workers)
    with stack, ExitStack() as envoys:
        stack.set_limits(SERVICE, rpm=_RPM, tpm=_TPM)
        systems = {}
        python_pid = stack.child("serve").pid
        for profile in profiles:
            listen_port, admin_port = free_ports(2)
            options = stack.render_options(
                profile=profile, listen_port=listen_port, admin_port=admin_port
            )
            name = f"ours-{profile}-{workers}"
            systems[profile] = System(
                name="ours",
                port=listen_port,
                admin_url=f"http://127.0.0.1:{admin_port}",
                envoy_pid=envoys.enter_context(
                    running_envoy(name, render_bootstrap(options), directory)
                ),
                python_pid=python_pid,
                redis_url=stack.redis_url,
            )
        yield systems


def envoy_messages(system: System) -> int:
    """How many ext_proc messages Envoy has sent to the server so far, by Envoy's own counters."""
    answer = fetch(f"{system.admin_url}/stats?filter=ext_proc.*stream_msgs_sent&format=json")
    return sum(stat["value"] for stat in json.loads(answer)["stats"] if "value" in stat)
