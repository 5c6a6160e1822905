"""Where the Lua scripts and the Envoy includes are: the only place that knows.

In an installed wheel they are inside the package (the build copies them to ``extproc/_assets``); in
a checkout they are the folders ``lua`` and ``envoy`` beside the package.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    for parent in (_PACKAGE / "_assets", _PACKAGE.parent):
        if (folder := parent / name).is_dir():
            return folder
    raise FileNotFoundError(f"folder {name!r} is neither in the package nor beside it")


def lua_folder() -> Path:
    """Folder of the Redis scripts."""
    return _folder("lua")


def envoy_folder() -> Path:
    """Folder of the Envoy configuration includes."""
    return _folder("envoy")
