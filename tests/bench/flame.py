"""A flame graph as a picture, from the folded stacks that py-spy writes (``--format raw``)."""

from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt  # the backend is chosen before

# Narrower frames are not drawn, and only wide ones have their name.
_LEAST_SHARE, _NAMED_SHARE = 0.003, 0.02
_HUES = ("#e4572e", "#f3a712", "#e8865a", "#d9932f", "#f0b860")
_COLUMNS = 190  # characters of a name that the whole width takes


@dataclass
class _Frame:
    samples: int = 0
    inside: dict[str, "_Frame"] = field(default_factory=dict)


def _read(stacks: str) -> _Frame:
    root = _Frame()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frame = root
        frame.samples += int(count)
        for name in stack.split(";"):
            # Lines of one function belong together.
            frame = frame.inside.setdefault(name.rpartition(":")[0] or name, _Frame())
            frame.samples += int(count)
    return root


def draw_flame(stacks: str, path: Path, *, title: str) -> None:
    """Write ``path`` (PNG): widths are shares of samples, callers stand below what they call."""
    root = _read(stacks)
    figure, axes = plt.subplots(figsize=(16, 9))
    deepest = 0

    def draw(frame: _Frame, left: float, depth: int) -> None:
        nonlocal deepest
        for name in sorted(frame.inside):
            inner = frame.inside[name]
            share = inner.samples / root.samples
            if share >= _LEAST_SHARE:
                deepest = max(deepest, depth)
                hue = _HUES[sum(name.encode()) % len(_HUES)]
                axes.barh(depth, share, left=left, height=0.96, align="edge", color=hue)
                if share >= _NAMED_SHARE:
                    shown = name.partition(" (")[0][: int(share * _COLUMNS)]
                    axes.text(
                        left + share / 2, depth + 0.48, shown, ha="center", va="center", size=6
                    )
                draw(inner, left, depth + 1)
            left += share

    draw(root, 0.0, 0)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, deepest + 1)
    axes.axis("off")
    axes.set_title(f"{title} ({root.samples} samples)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
