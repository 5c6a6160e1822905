"""What the benchmark says of reading: answers, requests, and prompts of 1 MB beside others."""

from collections.abc import Mapping

from tests.bench.answers import CHUNKS
from tests.bench.large_prompt import (
    LARGE_PER_SECOND,
    SMALL_PER_SECOND,
    TARGET_RATIO,
    LargePrompts,
)
from tests.bench.reading import ReadingCost
from tests.bench.report_limits import Value

_TITLES = {
    "openai": "OpenAI chat",
    "openai_hidden": "OpenAI chat, usage hidden",
    "openai_gzip": "OpenAI chat, gzip",
    "anthropic": "Anthropic messages",
    "gemini": "Gemini",
    "bedrock": "Bedrock Converse, event stream",
}
_KINDS = {"one_text": "one text", "many_messages": "short messages"}


def reading_values(cost: ReadingCost) -> dict[str, Value]:
    """Flat keys ``reading.*``; no framer where it would not see the bytes that arrive."""
    values: dict[str, Value] = {}
    for name, stream in cost.streams.items():
        values[f"reading.{name}.bytes_per_chunk"] = stream.plain_bytes / CHUNKS
        values[f"reading.{name}.us_per_chunk"] = stream.reader_us_per_chunk
        values[f"reading.{name}.mb_per_second"] = stream.reader_mb_per_second
        if stream.framer_seconds is not None:
            values[f"reading.{name}.framer_mb_per_second"] = stream.framer_mb_per_second
    values["reading.request_bytes"] = cost.request_bytes
    values["reading.request_cold_us"] = cost.cold_us
    values["reading.request_warm_us"] = cost.warm_us
    return values


def large_values(large: LargePrompts) -> dict[str, Value]:
    """Flat keys ``large.*``, in ms."""
    values: dict[str, Value] = {
        "large.without_p50_ms": large.p50_ms,
        "large.without_p99_ms": large.p99_ms,
    }
    for name, kind in large.kinds.items():
        values[f"large.{name}.p50_ms"] = kind.p50_ms
        values[f"large.{name}.p99_ms"] = kind.p99_ms
        values[f"large.{name}.p99_ratio"] = kind.p99_ratio
        values[f"large.{name}.own_p50_ms"] = kind.own_p50_ms
    return values


def large_faults(large: LargePrompts) -> list[str]:
    """Answers other than 200."""
    if not large.not_200:
        return []
    return [f"large prompts: {large.not_200} of {large.requests} answers were not 200"]


def reading_table(values: Mapping[str, Value]) -> str:
    """What a person reads of reading."""

    def cell(key: str, decimals: int) -> str:
        value = values.get(key)
        return "-" if value is None else f"{value:,.{decimals}f}"

    heads = ("bytes/chunk", "us/chunk", "MB/s", "framer MB/s")
    lines = [
        f"{f'reading streams of {CHUNKS} chunks':40}" + "".join(f"{head:>14}" for head in heads)
    ]
    for name, title in _TITLES.items():
        cells = [
            cell(f"reading.{name}.bytes_per_chunk", 0),
            cell(f"reading.{name}.us_per_chunk", 1),
            cell(f"reading.{name}.mb_per_second", 1),
            cell(f"reading.{name}.framer_mb_per_second", 1),
        ]
        lines.append(f"{title:40}" + "".join(f"{text:>14}" for text in cells))
    lines += [
        "",
        f"Reading and counting a chat of {cell('reading.request_bytes', 0)} bytes: "
        f"{cell('reading.request_cold_us', 0)} us with a new system prompt, "
        f"{cell('reading.request_warm_us', 0)} us with one seen before",
    ]
    return "\n".join(lines)


def large_table(values: Mapping[str, Value]) -> str:
    """What a person reads of prompts of 1 MB."""

    def cell(key: str, decimals: int) -> str:
        value = values.get(key)
        return "-" if value is None else f"{value:,.{decimals}f}"

    lines = [
        f"{f'{SMALL_PER_SECOND:.0f} small requests/s':40}{'alone':>18}"
        + "".join(f"{f'1 MB: {title}':>24}" for title in _KINDS.values()),
    ]
    for rank in ("p50", "p99"):
        cells = [cell(f"large.{name}.{rank}_ms", 2) for name in _KINDS]
        lines.append(
            f"{f'{rank} ms':40}{cell(f'large.without_{rank}_ms', 2):>18}"
            + "".join(f"{text:>24}" for text in cells)
        )
    ratios = [cell(f"large.{name}.p99_ratio", 2) for name in _KINDS]
    own = [cell(f"large.{name}.own_p50_ms", 1) for name in _KINDS]
    title = f"p99 by that alone (at most {TARGET_RATIO:.0f})"
    lines.append(f"{title:40}{'-':>18}" + "".join(f"{text:>24}" for text in ratios))
    title = f"p50 ms of the large, {LARGE_PER_SECOND:.0f}/s"
    lines.append(f"{title:40}{'-':>18}" + "".join(f"{text:>24}" for text in own))
    return "\n".join(lines)
