"""``python -m tests.bench.peers_install``: gets the peers of the benchmark into ``build/peers``.

Python peers get a virtual environment each, from the exact versions and hashes of a lock file
beside this module; envoyproxy/ratelimit is built from its module by Go, whose checksum database
proves it. What cannot be installed is said, and the rest goes on.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.peers_rig import build_directory

RATELIMIT_VERSION = "v1.4.1-0.20260122083618-3fb702589d36"
_RATELIMIT = "github.com/envoyproxy/ratelimit/src/service_cmd"
_INSTALL_SECONDS = 1200.0
_STAMP = ".installed"
_LAST_LINES = 3


class NotInstalledError(RuntimeError):
    """A peer is not there; the text says why, without the peer's name."""


def lock_file(name: str) -> Path:
    """The versions and hashes of everything that a Python peer is installed with."""
    return Path(__file__).with_name(f"peers_{name}.lock")


def _digest(name: str) -> str:
    return hashlib.sha256(lock_file(name).read_bytes()).hexdigest()


def _run(command: list[str], *, env: dict[str, str] | None = None) -> None:
    """Raises NotInstalledError with the end of what the command said."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(str(error)) from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise NotInstalledError("; ".join(said[-_LAST_LINES:]) or f"status {done.returncode}")


def installed_environment(name: str) -> Path:
    """The ``bin`` of a Python peer. NotInstalledError: it is missing, or older than its lock."""
    folder = build_directory() / name
    stamp = folder / _STAMP
    if not stamp.exists() or stamp.read_text() != _digest(name):
        raise NotInstalledError("say make bench-peers")
    return folder / "bin"


def installed_ratelimit() -> Path:
    """The binary of envoyproxy/ratelimit. NotInstalledError: it is missing or another version."""
    binary = build_directory() / f"ratelimit-{RATELIMIT_VERSION}" / "service_cmd"
    if not binary.exists():
        without = "" if shutil.which("go") else "no Go on this machine; "
        raise NotInstalledError(f"{without}say make bench-peers")
    return binary


def _install_environment(name: str) -> None:
    try:
        installed_environment(name)
    except NotInstalledError:
        folder = build_directory() / name
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", "--require-hashes", "-r", str(lock_file(name))])
        (folder / _STAMP).write_text(_digest(name))


def _install_ratelimit() -> None:
    try:
        installed_ratelimit()
    except NotInstalledError:
        go = shutil.which("go")
        if go is None:
            raise NotInstalledError("no Go on this machine") from None
        folder = build_directory() / f"ratelimit-{RATELIMIT_VERSION}"
        env = {**os.environ, "GOBIN": str(folder)}
        _run([go, "install", f"{_RATELIMIT}@{RATELIMIT_VERSION}"], env=env)


_INSTALLERS: dict[str, Callable[[], None]] = {
    "litellm": lambda: _install_environment("litellm"),
    "gateway": lambda: _install_environment("gateway"),
    "ratelimit": _install_ratelimit,
}


def main() -> int:
    """Always ends with status 0: a peer that is missing is no fault of the benchmark."""
    build_directory().mkdir(parents=True, exist_ok=True)
    for name, install in _INSTALLERS.items():
        print(f"{name}: installing into {build_directory()}", flush=True)
        try:
            install()
        except NotInstalledError as error:
            print(f"{name}: not installed: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
