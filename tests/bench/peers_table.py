"""The peers' figures as a small table of text."""

from collections.abc import Mapping

_NAMES = {
    "litellm": "LiteLLM",
    "gateway": "own gateway",
    "ratelimit": "ratelimit",
}
# Figure, its words, decimals.
_ROWS = (
    ("python_cpu_us", "32 connections: Python CPU us/request", 0),
    ("cpu_us", "32 connections: Go CPU us/request", 0),
    ("envoy_cpu_us", "32 connections: its Envoy's CPU us/request", 0),
    ("rps", "32 connections: requests/s", 0),
    ("loaded_p50_ms", "32 connections: p50 ms", 2),
    ("p50_ms", "one client: p50 ms", 2),
    ("p99_ms", "one client: p99 ms", 2),
    ("stream200_cpu_us", "200-chunk stream: CPU us/stream", 0),
    ("stream200_envoy_cpu_us", "200-chunk stream: its Envoy's CPU us/stream", 0),
    ("memory_mb", "memory MB", 0),
    ("redis_commands_per_request", "Redis commands/request", 2),
    ("redis_reads_per_request", "Redis round trips/request, one client", 2),
)
_LABEL, _COLUMN = 46, 13


def table(values: Mapping[str, float | str]) -> str:
    """What ``measure_peers`` gave, for people to read."""
    lines = [" " * _LABEL + "".join(f"{name:>{_COLUMN}}" for name in _NAMES.values())]
    for figure, words, decimals in _ROWS:
        cells = []
        for peer in _NAMES:
            value = values.get(f"{peer}.{figure}")
            cells.append(f"{value:,.{decimals}f}" if isinstance(value, float) else "-")
        lines.append(f"{words:<{_LABEL}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells))
    lines.append("")
    for peer, name in _NAMES.items():
        skipped, version = values.get(f"{peer}.skipped"), values.get(f"{peer}.version")
        lines.append(f"{name}: skipped, {skipped}" if skipped else f"{name}: {version}")
    lines.append("ratelimit only counts requests: no tokens, no usage, no answers.")
    if isinstance(others := values.get("machine.others_percent"), float):
        lines.append(f"Other programs used {others:.0f} % of the machine.")
    return "\n".join(lines)
