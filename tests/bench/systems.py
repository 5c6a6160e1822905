"""The three systems that are measured, each from processes of its own, and their upstreams.

* ``bare``: Envoy with a listener, one route and the upstream, no filter but the router.
* ``empty``: Envoy as tokenweir configures it, profile ``inline``, and the empty server.
* ``ours``: the same configuration, ``tokenweir serve`` and a real Valkey.
"""

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extproc.demo.envoy_binary import envoy_command
from extproc.demo.processes import Child, clean_environment, free_ports
from extproc.demo.provider_script import SCRIPT_HEADER
from extproc.demo.stack import Stack, demo_key
from extproc.envoyconfig import RenderOptions, render_bootstrap
from tests.bench.traffic import answer_body

SERVICE = "svc-bench"
# Far above what a machine can send: the limits are checked, and never refuse.
_RPM, _TPM = 2_000_000_000, 1_000_000_000_000
_READY_SECONDS = 30.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One measured system while it runs. Bare Envoy has no Python and no Redis."""

    name: str
    port: int
    admin_url: str
    envoy_pid: int
    python_pid: int | None = None
    redis_url: str | None = None


def fetch(url: str) -> bytes:
    """The body of a GET without any proxy. Raises OSError for no answer and for an error status."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=5) as response:
        body: bytes = response.read()
    return body


@contextmanager
def _running(
    name: str, command: list[str], directory: Path, *, ready_url: str | None = None
) -> Iterator[int]:
    """A child until the block ends; gives its process id. Without a URL it says "listening"."""
    child = Child(name, command, log_path=directory / f"{name}.log", env=clean_environment())

    def is_ready() -> bool:
        if ready_url is None:
            return "listening" in child.output()
        try:
            fetch(ready_url)
        except OSError:
            return False
        return True

    child.start()
    try:
        child.wait_ready(is_ready, deadline_s=_READY_SECONDS)
        pid = child.pid
        assert pid is not None
        yield pid
    finally:
        child.stop(deadline_s=_STOP_SECONDS)


@contextmanager
def _envoy(name: str, config: dict[str, Any], directory: Path) -> Iterator[int]:
    admin_port = config["admin"]["address"]["socket_address"]["port_value"]
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    ready = f"http://127.0.0.1:{admin_port}/ready"
    with _running(name, envoy_command(path), directory, ready_url=ready) as pid:
        yield pid


def _options(upstream_url: str, *, tokenweir_address: str) -> RenderOptions:
    listen_port, admin_port = free_ports(2)
    return RenderOptions(
        upstream_url=upstream_url,
        listen_port=listen_port,
        admin_port=admin_port,
        tokenweir_addresses=(tokenweir_address,),
        api_keys={demo_key(SERVICE): SERVICE},
    )


def _manager(config: dict[str, Any]) -> dict[str, Any]:
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


@contextmanager
def upstream(directory: Path) -> Iterator[str]:
    """An Envoy that answers each request by itself, which costs next to nothing; gives its URL.

    Requests with a script for the fake provider go on to that one: streams.
    """
    (port,) = free_ports(1)
    provider_url = f"http://127.0.0.1:{port}"
    options = _options(provider_url, tokenweir_address="127.0.0.1:1")
    config = _without_tokenweir(render_bootstrap(options))
    host = _manager(config)["route_config"]["virtual_hosts"][0]
    (by_script,) = host["routes"]
    by_script["match"]["headers"] = [{"name": SCRIPT_HEADER, "present_match": True}]
    json_type = {"header": {"key": "content-type", "value": "application/json"}}
    at_once = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": answer_body().decode()}},
        "response_headers_to_add": [{**json_type, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    host["routes"] = [by_script, at_once]
    command = [sys.executable, "-m", "extproc.demo.fake_provider", "--port", str(port)]
    health = f"{provider_url}/_fake/health"
    with (
        _running("provider", command, directory, ready_url=health),
        _envoy("upstream", config, directory),
    ):
        yield f"http://127.0.0.1:{options.listen_port}"


@contextmanager
def bare(upstream_url: str, directory: Path) -> Iterator[System]:
    """Envoy alone."""
    options = _options(upstream_url, tokenweir_address="127.0.0.1:1")
    with _envoy("bare", _without_tokenweir(render_bootstrap(options)), directory) as pid:
        yield System(
            name="bare",
            port=options.listen_port,
            admin_url=f"http://127.0.0.1:{options.admin_port}",
            envoy_pid=pid,
        )


@contextmanager
def empty(upstream_url: str, directory: Path) -> Iterator[System]:
    """Envoy and the empty server, over a unix socket as in ``ours``."""
    address = f"unix:{directory / 'empty.sock'}"
    options = _options(upstream_url, tokenweir_address=address)
    command = [sys.executable, "-m", "tests.bench.empty_server", "--listen", address]
    with (
        _running("empty", command, directory) as python_pid,
        _envoy("empty-envoy", render_bootstrap(options), directory) as envoy_pid,
    ):
        yield System(
            name="empty",
            port=options.listen_port,
            admin_url=f"http://127.0.0.1:{options.admin_port}",
            envoy_pid=envoy_pid,
            python_pid=python_pid,
        )


@contextmanager
def ours(upstream_url: str, _directory: Path) -> Iterator[System]:
    """Envoy, ``tokenweir serve``, Valkey and SQLite; no reaper, which no request waits for."""
    stack = Stack(
        services=(SERVICE,),
        upstream_url=upstream_url,
        envoy_options={"access_log_path": None},
        with_work=False,
    )
    with stack:
        stack.set_limits(SERVICE, rpm=_RPM, tpm=_TPM)
        envoy_pid, python_pid = stack.child("envoy").pid, stack.child("serve").pid
        assert envoy_pid is not None
        assert python_pid is not None
        yield System(
            name="ours",
            port=stack.envoy_port,
            admin_url=stack.admin_url,
            envoy_pid=envoy_pid,
            python_pid=python_pid,
            redis_url=stack.redis_url,
        )


def envoy_messages(system: System) -> int:
    """How many ext_proc messages Envoy has sent to the server so far, by Envoy's own counters."""
    answer = fetch(f"{system.admin_url}/stats?filter=ext_proc.*stream_msgs_sent&format=json")
    return sum(stat["value"] for stat in json.loads(answer)["stats"] if "value" in stat)
