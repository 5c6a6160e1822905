"""The whole product on one machine: Valkey, SQLite, server, reaper, fake provider, Envoy.

The end-to-end tests use the same class as ``tokenweir up`` and ``tokenweir demo``.
"""

import asyncio
import http.client
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.core.worker_addresses import worker_addresses
from extproc.demo.envoy_binary import envoy_command
from extproc.demo.processes import (
    Child,
    ChildError,
    clean_environment,
    free_ports,
    run_to_end,
    uninterrupted,
)
from extproc.demo.valkey import valkey_command
from extproc.envoy_io.health_probe import is_serving
from extproc.envoyconfig import RenderOptions, to_yaml
from extproc.envoyconfig.messages import TOKENWEIR_CLUSTER
from extproc.stores.migrate import upgrade

DEFAULT_LIMITS = {"svc-chat": (600, 100_000), "svc-small": (5, 1_000)}
DEFAULT_SERVICES = tuple(DEFAULT_LIMITS)
# A unix socket's path must fit into 108 bytes (sun_path of unix(7)), its final zero included.
_MAX_SOCKET_PATH = 107
_OK = 200
_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
# Stores start first, so that whoever needs them finds them, and Envoy last, because it asks at once
# for the health of the servers. It also stops first, so that no new request comes while they write
# their last settlements.
_START_ORDER = (("valkey", "provider"), ("servers", "work"), ("envoy",))
_STOP_ORDER = (("envoy",), ("servers",), ("work",), ("provider",), ("valkey",))


def demo_key(service_id: str) -> str:
    """The API key by which a client of the stack is known as ``service_id``."""
    return f"demo-key-{service_id}"


class Stack:
    """One running set of processes. Use it with ``with``, ``async with``, or start() and stop().

    ``run_dir``: where everything is written; without it a temporary folder, removed by stop()
    (``is_temporary``).
    ``services``: ids that clients can be, by the key ``demo_key(id)``; limits are the caller's.
    ``upstream_url``: a provider to call instead of the fake one, with ``upstream_headers`` set on
    each request (Envoy's %ENVIRONMENT(NAME)% keeps a key out of every file and log).
    ``redis_url``, ``database_url``: use these instead of an own Valkey and an own SQLite file;
    ``redis_cluster``: the Redis is a cluster.
    ``serve_env``, ``work_env``: more TOKENWEIR_* variables for these two. ``envoy_options``:
    fields of RenderOptions that replace the stack's own. ``with_work=False``: no reaper.
    ``servers``: how many processes answer Envoy: "serve", "serve-2" and so on.
    ``workers``: the same as one child "serve", which supervises so many.
    ``commands``: by the name of a child, what to run in its place.
    """

    def __init__(
        self,
        *,
        run_dir: Path | None = None,
        services: Sequence[str] = DEFAULT_SERVICES,
        envoy_port: int | None = None,
        upstream_url: str | None = None,
        upstream_headers: Mapping[str, str] | None = None,
        redis_url: str | None = None,
        redis_cluster: bool = False,
        database_url: str | None = None,
        reaper_deadline_seconds: float | None = None,
        serve_env: Mapping[str, str] | None = None,
        work_env: Mapping[str, str] | None = None,
        envoy_options: Mapping[str, Any] | None = None,
        envoy_concurrency: int = 1,
        with_work: bool = True,
        servers: int = 1,
        workers: int = 1,
        commands: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.is_temporary = run_dir is None
        self.run_dir = (run_dir or Path(tempfile.mkdtemp(prefix="tokenweir-"))).absolute()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        valkey, provider, metrics, admin, envoy, *grpc_ports = free_ports(5 + servers)
        self.services = tuple(services)
        self.upstream_headers = dict(upstream_headers or {})
        self.has_real_upstream = upstream_url is not None
        self.redis_url = redis_url or f"redis://127.0.0.1:{valkey}/0"
        self.database_url = database_url or f"sqlite:///{self.run_dir / 'tokenweir.db'}"
        self.provider_url = upstream_url or f"http://127.0.0.1:{provider}"
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self.admin_url = f"http://127.0.0.1:{admin}"
        self.envoy_port = envoy_port or envoy
        self.base_url = f"http://127.0.0.1:{self.envoy_port}"
        names = ["serve", *(f"serve-{number}" for number in range(2, servers + 1))]
        self.grpc_addresses = {
            name: _grpc_address(self.run_dir / f"{name}.sock", port)
            for name, port in zip(names, grpc_ports, strict=True)
        }
        reaper: dict[str, str] = {}
        if reaper_deadline_seconds is not None:
            reaper = {
                "TOKENWEIR_REAPER__DEADLINE_SECONDS": str(reaper_deadline_seconds),
                "TOKENWEIR_REAPER__INTERVAL_SECONDS": "0.2",
            }
        self._env = {
            **clean_environment(),
            # Children find the package also when it runs from a checkout that is not installed.
            "PYTHONPATH": _with_package_path(),
            "TOKENWEIR_SERVER__METRICS_LISTEN": f"127.0.0.1:{metrics}",
            "TOKENWEIR_SERVER__METRICS_DIR": str(self.run_dir / "metrics"),
            "TOKENWEIR_SERVER__DRAIN_SECONDS": "0",
            "TOKENWEIR_SERVER__SHUTDOWN_GRACE_SECONDS": "2",
            "TOKENWEIR_REDIS__URL": self.redis_url,
            "TOKENWEIR_REDIS__CLUSTER": str(redis_cluster),
            # One machine runs everything here, and it may be a busy one.
            "TOKENWEIR_REDIS__TIMEOUT_MS": "500",
            "TOKENWEIR_DATABASE__URL": self.database_url,
            **reaper,
        }
        serve = ["serve", *(["--workers", str(workers)] if workers > 1 else [])]
        self._worker_addresses = worker_addresses(
            "server.listen", self.grpc_addresses["serve"], workers
        )
        self._options = {
            "upstream_url": self.provider_url,
            "upstream_headers": self.upstream_headers,
            "listen_port": self.envoy_port,
            "admin_port": admin,
            "tokenweir_addresses": (
                *self._worker_addresses,
                *(at for name, at in self.grpc_addresses.items() if name != "serve"),
            ),
            "api_keys": {demo_key(service): service for service in self.services},
            "access_log_path": str(self.run_dir / "access.log"),
            **(envoy_options or {}),
        }
        self._envoy_config = self.run_dir / "envoy.yaml"
        self._children: dict[str, Child] = {}
        self._commands = dict(commands or {})
        if redis_url is None:
            data = self.run_dir / "valkey"
            data.mkdir(exist_ok=True)
            self._add("valkey", valkey_command(valkey, data))
        if upstream_url is None:
            self._add("provider", _module("extproc.demo.fake_provider", "--port", str(provider)))
        for name, address in self.grpc_addresses.items():
            own = {"TOKENWEIR_SERVER__LISTEN": address}
            if name != "serve":
                # `metrics_dir` is shared: the endpoint of the first shows all.
                own["TOKENWEIR_SERVER__METRICS_LISTEN"] = "127.0.0.1:0"
            self._add(name, _module("extproc.cli", *serve), {**own, **(serve_env or {})})
        if with_work:
            self._add("work", _module("extproc.cli", "work"), work_env)
        self._add("envoy", envoy_command(self._envoy_config, concurrency=envoy_concurrency))

    def _add(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        log_path = self.run_dir / f"{name}.log"
        self._children[name] = Child(
            name,
            self._commands.get(name, command),
            log_path=log_path,
            env={**self._env, **(env or {})},
        )

    def render_options(self, **changes: Any) -> RenderOptions:
        """What Envoy's configuration is made of, with ``changes``: for another Envoy beside it."""
        return RenderOptions(**{**self._options, **changes})

    def start(self) -> None:
        """Start everything and wait until it answers. On failure all is stopped again, and
        ChildError shows the end of the log of whoever failed."""
        try:
            self._envoy_config.write_text(to_yaml(self.render_options()))
            first, *later = self._groups(_START_ORDER)
            for name in first:
                self._children[name].start()
            self._upgrade_database()  # meanwhile
            for name in first:
                self._wait_ready(name)
            for names in later:
                for name in names:
                    self._children[name].start()
                for name in names:
                    self._wait_ready(name)
        except BaseException:
            self.stop()
            raise

    def _upgrade_database(self) -> None:
        """What ``tokenweir db upgrade`` does, without the start of a process for it."""
        try:
            upgrade(self.database_url)
        except (SettingsError, StoreUnavailableError) as error:
            raise ChildError(f"the database cannot be prepared: {error}") from error

    def stop(self) -> None:
        """Stop everything in order, and remove the run directory when it was temporary.

        An impatient second Ctrl-C waits for the end of it: it would leave children behind.
        """
        with uninterrupted():
            for names in self._groups(_STOP_ORDER):
                for name in names:
                    self._children[name].stop(deadline_s=_STOP_SECONDS)
            if self.is_temporary:
                shutil.rmtree(self.run_dir, ignore_errors=True)

    def _groups(self, order: Sequence[Sequence[str]]) -> list[list[str]]:
        servers = [*self.grpc_addresses]
        groups = (
            [each for name in names for each in (servers if name == "servers" else [name])]
            for names in order
        )
        return [[name for name in names if name in self._children] for names in groups]

    def child(self, name: str) -> Child:
        """One of valkey, provider, serve (serve-2, ...), work, envoy; KeyError for any other."""
        return self._children[name]

    def kill(self, name: str) -> None:
        """SIGKILL one child."""
        self._children[name].kill()

    def stop_one(self, name: str) -> None:
        """SIGTERM one child and wait for its orderly end."""
        self._children[name].stop(deadline_s=_STOP_SECONDS)

    def start_again(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        """Start a child that does not run, with the same command, and wait until it is ready.

        ``env``: more variables, for this start only."""
        self._children[name].start(env=env)
        self._wait_ready(name)

    def _wait_ready(self, name: str) -> None:
        child = self._children[name]
        child.wait_ready(self._readiness(name), deadline_s=_READY_SECONDS)
        if name in self.grpc_addresses and self.child("envoy").running:
            # Envoy refuses until its next health check has found the server again.
            address = self.grpc_addresses[name].removeprefix("unix:")
            line = f"{TOKENWEIR_CLUSTER}::{address}::health_flags::healthy"
            child.wait_ready(
                lambda: line in http_get(f"{self.admin_url}/clusters")[1].splitlines(),
                deadline_s=_READY_SECONDS,
            )

    def _readiness(self, name: str) -> Callable[[], bool]:
        if name in self.grpc_addresses:
            if name == "serve":
                return lambda: all(map(is_serving, self._worker_addresses))
            return lambda: is_serving(self.grpc_addresses[name])
        checks: dict[str, Callable[[], bool]] = {
            "valkey": lambda: _answers_ping(self.redis_url),
            "provider": lambda: http_get(f"{self.provider_url}/_fake/health")[0] == _OK,
            "work": lambda: "working" in self._children["work"].output(),
            "envoy": lambda: http_get(f"{self.admin_url}/ready")[0] == _OK,
        }
        return checks[name]

    def log(self, name: str) -> str:
        """Everything that a child has written so far."""
        path = self._children[name].log_path
        return path.read_text(errors="replace") if path.exists() else ""

    def tails(self) -> str:
        """The ends of all logs, to be shown when something went wrong."""
        return "\n".join(child.tail() for child in self._children.values())

    def cli(self, *arguments: str) -> str:
        """Run ``tokenweir ARGUMENTS`` against this stack's stores; returns its standard output.

        Raises ChildError with its output when it fails."""
        name = "tokenweir " + " ".join(arguments)
        return run_to_end(name, _module("extproc.cli", *arguments), env=self._env)

    def set_limits(self, service_id: str, *, rpm: int, tpm: int) -> None:
        """``tokenweir limits set``: in force for the next request."""
        self.cli("limits", "set", service_id, "--rpm", str(rpm), "--tpm", str(tpm))

    def __enter__(self) -> Self:
        self.start()
        return self

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._explain(error)
        await asyncio.to_thread(self.stop)

    def _explain(self, error: BaseException | None) -> None:
        """Logs are shown only when something failed while the stack ran."""
        if isinstance(error, Exception):
            print(self.tails(), file=sys.stderr)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._explain(error)
        self.stop()


def _grpc_address(socket_path: Path, port: int) -> str:
    fits = len(bytes(socket_path)) <= _MAX_SOCKET_PATH
    return f"unix:{socket_path}" if fits else f"127.0.0.1:{port}"


def _with_package_path() -> str:
    package_parent = str(Path(__file__).resolve().parents[2])
    inherited = clean_environment().get("PYTHONPATH")
    return f"{package_parent}:{inherited}" if inherited else package_parent


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def http_get(url: str) -> tuple[int, str]:
    """Status and body of a GET without any proxy; status 0 when nothing answers."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=2)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def _answers_ping(url: str) -> bool:
    client = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
