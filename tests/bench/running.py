"""Child processes of the benchmark: started, awaited, stopped."""

import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from extproc.demo.envoy_binary import envoy_command
from extproc.demo.processes import Child, clean_environment

_READY_SECONDS = 30.0
_STOP_SECONDS = 10.0


def fetch(url: str) -> bytes:
    """The body of a GET without any proxy. Raises OSError for no answer and for an error status."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=5) as response:
        body: bytes = response.read()
    return body


def answers(url: str) -> bool:
    """True when a GET is answered with a good status."""
    try:
        fetch(url)
    except OSError:
        return False
    return True


@contextmanager
def running(
    name: str,
    command: list[str],
    directory: Path,
    *,
    is_ready: Callable[[], bool] | None = None,
    env: Mapping[str, str] | None = None,
    ready_seconds: float = _READY_SECONDS,
) -> Iterator[int]:
    """A child until the block ends; gives its process id. Without ``is_ready`` it says "listening".

    ``env``: instead of our own environment. Raises ChildError when it does not get ready.
    """
    log = directory / f"{name}.log"
    child = Child(name, command, log_path=log, env=clean_environment() if env is None else env)
    child.start()
    try:
        child.wait_ready(
            is_ready or (lambda: "listening" in child.output()), deadline_s=ready_seconds
        )
        pid = child.pid
        assert pid is not None
        yield pid
    finally:
        child.stop(deadline_s=_STOP_SECONDS)


@contextmanager
def running_envoy(name: str, config: dict[str, Any], directory: Path) -> Iterator[int]:
    """An Envoy of one worker until the block ends; gives its process id."""
    admin_port = config["admin"]["address"]["socket_address"]["port_value"]
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    ready = f"http://127.0.0.1:{admin_port}/ready"
    with running(name, envoy_command(path), directory, is_ready=lambda: answers(ready)) as pid:
        yield pid
