"""The tables of the chain: CPU by profile, and what is added to the time of answers."""

from collections.abc import Mapping

from tests.bench.latency import HALF, LEVELS, PERCENTILES
from tests.bench.report_limits import Value
from tests.bench.systems import PROFILES

_CPU_TITLE, _CPU_CELL = 40, 9
# Heading of a row, key of its cells, decimals; bare Envoy has no Python and no chain.
_CPU_ROWS: tuple[tuple[str, str, int], ...] = (
    ("requests/s", "rps", 0),
    ("Python CPU us", "python_cpu_us", 0),
    ("Envoy CPU us", "envoy_cpu_us", 0),
    ("Envoy and Python CPU us", "chain_cpu_us", 0),
    ("Envoy and Python CPU by bare Envoy's", "chain_cpu_ratio", 2),
    ("Python CPU by the empty server's", "python_cpu_ratio", 2),
    ("ext_proc messages", "messages", 1),
)
_LOADS = {
    "json": "JSON, 32 connections, each request",
    "stream200": "200-chunk SSE, 8 connections, each stream",
}
_TIMES = (
    ("json", "", "JSON: ms until the answer is there"),
    ("stream200", "ttft_", "200-chunk SSE: ms until the first token is there"),
    ("stream200", "chunk_", "200-chunk SSE: ms that a chunk is on its way"),
)
_RANKS = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}

# What a figure should be at most (at least), by key.
AT_MOST: Mapping[str, float] = {
    **{f"json.{profile}.python_cpu_ratio": 1.6 for profile in PROFILES},
    "stream200.native.python_cpu_over_json": 1.3,
    "stream200.native.chain_cpu_ratio": 2.0,
    "stream200.inline.python_cpu_ratio": 1.25,
    "stream200.observe.python_cpu_ratio": 1.25,
    "stream200.inline.added_chunk_p99_ms": 1.0,
    "litellm.cpu_ratio": 1 / 20,
    "overshoot.strict": 0,
}
AT_LEAST: Mapping[str, float] = {"scaling.two_workers": 1.8}


def _cell(value: Value, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if isinstance(value, int | float) else "-"


def cpu_table(values: Mapping[str, Value], kind: str) -> str:
    """One kind of answer: bare, and for each profile the empty server and ours."""
    columns = [("bare", "bare", "inline")]
    for profile in PROFILES:
        columns += [(profile, "empty", profile), ("", "ours", profile)]
    first = "".join(f"{top:>{_CPU_CELL}}" for top, _, _ in columns)
    second = "".join(f"{'' if name == 'bare' else name:>{_CPU_CELL}}" for _, name, _ in columns)
    lines = [f"{_LOADS[kind]:{_CPU_TITLE + 2}}{first}", " " * (_CPU_TITLE + 2) + second]
    for title, key, decimals in _CPU_ROWS:
        cells = [
            _cell(
                values.get(f"{kind}.{profile}.{'' if name == 'ours' else f'{name}_'}{key}"),
                decimals,
            )
            for _, name, profile in columns
        ]
        lines.append(f"{title:{_CPU_TITLE + 2}}" + "".join(f"{c:>{_CPU_CELL}}" for c in cells))
    return "\n".join(lines)


def time_tables(values: Mapping[str, Value]) -> str:
    """Percentiles of bare Envoy at the same rate, and what the others add to them."""
    blocks = []
    for kind, what, title in _TIMES:
        ranks = "".join(f"{_RANKS[rank]:>8}" for rank in PERCENTILES)
        lines = [
            title,
            f"{'':16}{'a second':>9} | {'bare Envoy':>32} | {'added by tokenweir':>32} | "
            f"{'added by the empty server':>32}",
            f"{'':16}{'':>9} |{ranks} |{ranks} |{ranks}",
        ]
        for profile in PROFILES:
            for percent in LEVELS:
                base = f"{kind}.{profile}.at_{percent}"
                groups = [
                    "".join(
                        f"{_cell(values.get(f'{base}.{begin}{what}{rank}_ms'), 2):>8}"
                        for rank in PERCENTILES
                    )
                    for begin in ("bare_", "added_", "empty_added_")
                ]
                rate = _cell(values.get(f"{base}.rps"), 1)
                lines.append(f"{f'{profile}, {percent} %':16}{rate:>9} |" + " |".join(groups))
        blocks.append("\n".join(lines))
    blocks.append(
        f"Per cent are of the most requests a second of that profile; the empty server is measured "
        f"at {HALF} %, at the same rate."
    )
    return "\n\n".join(blocks)


def target_lines(values: Mapping[str, Value]) -> list[str]:
    """Each figure that should not be passed, beside what it is."""
    lines = []
    for limits, word in ((AT_MOST, "at most"), (AT_LEAST, "at least")):
        for key, limit in limits.items():
            value = values.get(key)
            if not isinstance(value, int | float):
                continue
            holds = value <= limit if limits is AT_MOST else value >= limit
            lines.append(
                f"{key:44}{value:>10.3f}  {word} {limit:g}{'' if holds else '  NOT REACHED'}"
            )
    return lines
