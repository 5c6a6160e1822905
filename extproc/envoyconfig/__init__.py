"""Envoy configuration built from typed messages, so that a misspelt field is refused here.

For the command line, the demo and the generated includes only: the serving path never imports it.
The builders are loaded when they are asked for: the messages take about a second to import, and the
command line declares its arguments (``command``) without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from extproc.envoyconfig.options import RenderOptions

if TYPE_CHECKING:
    from extproc.envoyconfig.bootstrap import render_bootstrap, to_yaml

__all__ = ["RenderOptions", "render_bootstrap", "to_yaml"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("extproc.envoyconfig.bootstrap"), name)
