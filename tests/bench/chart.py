"""The picture of a run: what a request and a stream cost, and what is added to their time."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.latency import LEVELS
from tests.bench.report_limits import Value
from tests.bench.systems import PROFILES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ENVOY_COLOUR, _PYTHON_COLOUR = "#b0bec5", "#1565c0"
_COLOURS = {"inline": "#c62828", "observe": "#ef6c00", "native": "#2e7d32"}
_PEERS = {"gateway": "own gateway", "ratelimit": "envoy + ratelimit", "litellm": "LiteLLM"}


def _number(values: Mapping[str, Value], *keys: str) -> float:
    """The first of the keys that is there; 0 where nothing is."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _bars(values: Mapping[str, Value], kind: str) -> list[tuple[str, float, float]]:
    """(label, Envoy's CPU, the program's CPU) in us, from below."""
    bars = [("bare Envoy", _number(values, f"{kind}.inline.bare_envoy_cpu_us"), 0.0)]
    for profile in PROFILES:
        for system, begin in (("empty server", "empty_"), ("tokenweir", "")):
            base = f"{kind}.{profile}.{begin}"
            envoy = _number(values, f"{base}envoy_cpu_us")
            python = _number(values, f"{base}python_cpu_us")
            bars.append((f"{profile}: {system}", envoy, python))
    prefix = "" if kind == "json" else "stream200_"
    for peer, label in _PEERS.items():
        own = _number(values, f"{peer}.{prefix}python_cpu_us", f"{peer}.{prefix}cpu_us")
        if own:
            bars.append((label, _number(values, f"{peer}.{prefix}envoy_cpu_us"), own))
    return bars


def _draw_cpu(axes: "Axes", values: Mapping[str, Value], kind: str, title: str) -> None:
    bars = _bars(values, kind)
    labels = [label for label, _, _ in bars]
    envoy = [first for _, first, _ in bars]
    own = [second for _, _, second in bars]
    axes.barh(labels, envoy, color=_ENVOY_COLOUR, label="Envoy")
    axes.barh(labels, own, left=envoy, color=_PYTHON_COLOUR, label="Python (or the peer)")
    # One peer may be so large that nothing else could be seen: it is cut, and its number says it.
    ours = max(first + second for label, first, second in bars if label not in _PEERS.values())
    sums = [first + second for first, second in zip(envoy, own, strict=True)]
    end = min(max(sums), 2 * ours)
    axes.set_xlim(0, 1.15 * end)
    axes.invert_yaxis()
    for at, total in enumerate(sums):
        axes.text(min(total, end), at, f" {total:,.0f}{' (cut)' * (total > end)}", va="center")
    axes.set_xlabel("CPU, microseconds")
    axes.set_title(title)
    axes.legend(loc="lower right")


def _draw_times(
    axes: "Axes", values: Mapping[str, Value], kind: str, what: str, title: str
) -> None:
    for profile in PROFILES:
        for rank, style in (("p50", "-o"), ("p99", "--o")):
            points = {
                percent: _number(values, key)
                for percent in LEVELS
                if (key := f"{kind}.{profile}.at_{percent}.added_{what}{rank}_ms") in values
            }
            label = f"{profile}, {rank}"
            axes.plot([*points], [*points.values()], style, color=_COLOURS[profile], label=label)
    axes.set_xticks(list(LEVELS))
    axes.set_yscale("symlog", linthresh=1)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(visible=True, alpha=0.3)
    axes.set_xlabel("load, % of what the profile can carry")
    axes.set_ylabel("ms more than bare Envoy")
    axes.set_title(title)
    axes.legend(fontsize="small")


def draw(values: Mapping[str, Value], path: Path) -> None:
    """Write the picture as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(15, 15), layout="constrained")
    _draw_cpu(axes[0][0], values, "json", "A JSON request")
    _draw_cpu(axes[0][1], values, "stream200", "A stream of 200 chunks")
    _draw_times(axes[1][0], values, "json", "", "JSON: added latency")
    _draw_times(axes[1][1], values, "stream200", "ttft_", "Streams: added time to first token")
    _draw_times(axes[2][0], values, "stream200", "chunk_", "Streams: added to a chunk's way")
    _draw_ratios(axes[2][1], values)
    figure.suptitle(
        f"tokenweir, {values.get('date')}, {values.get('machine.cores')} cores of "
        f"{values.get('machine.cpu')}, Envoy {values.get('machine.envoy')}"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_ratios(axes: "Axes", values: Mapping[str, Value]) -> None:
    """Python's CPU by that of the empty server of the same profile."""
    width = 0.38
    for shift, kind, label, colour in (
        (-width / 2, "json", "JSON request", "#1565c0"),
        (width / 2, "stream200", "200-chunk stream", "#90caf9"),
    ):
        heights = [_number(values, f"{kind}.{profile}.python_cpu_ratio") for profile in PROFILES]
        places = [at + shift for at in range(len(PROFILES))]
        bars = axes.bar(places, heights, width, label=label, color=colour)
        axes.bar_label(bars, fmt="%.2f")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(PROFILES)), PROFILES)
    axes.set_title("Python CPU by the empty server's")
    axes.legend()
