"""`tokenweir inspect request|response FILE...`: what would be read of captured traffic.

One JSON line for each file; docs/captures.md has the files and the fields. Nothing is called:
neither Redis nor a provider, and no settings are needed.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from extproc.core.errors import RequestError
from extproc.providers.answers import AnswerReader, answer_reader
from extproc.providers.captures import (
    AnswerCapture,
    CaptureError,
    RequestCapture,
    answer_capture,
    read_capture,
    request_capture,
)
from extproc.providers.counting import MEDIA_KINDS
from extproc.providers.registry import load_extensions, read_request
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered
from extproc.providers.tokens import DEFAULT_ENCODING

# Some file could not be read; the others were.
EXIT_BAD_FILE = 2
_EXIT_NO_READER = 141  # as a shell says of a program that wrote to a closed pipe
_STDIN = "-"

Line = dict[str, object]


def run_inspect_command(args: argparse.Namespace) -> int:
    """Prints to standard output; a file that is no capture is named on standard error."""
    load_extensions()
    look: Callable[[Mapping[str, object], str], Line] = _request
    if args.verb == "response":
        look = partial(_response, with_count=args.counted)
    status = 0
    try:
        for file in args.files:
            try:
                line = look(_read(file), "-" if file == _STDIN else Path(file).stem)
            except CaptureError as error:
                print(f"tokenweir: {file}: {error}", file=sys.stderr)
                status = EXIT_BAD_FILE
                continue
            print(json.dumps(line))
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; the interpreter must not try to flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_NO_READER
    return status


def _read(file: str) -> dict[str, object]:
    if file == _STDIN:
        return read_capture(sys.stdin.buffer)
    try:
        with Path(file).open("rb") as opened:
            return read_capture(opened)
    except (OSError, ValueError) as error:
        if isinstance(error, CaptureError):
            raise
        raise CaptureError(getattr(error, "strerror", None) or str(error)) from None


def _request(value: Mapping[str, object], default_name: str) -> Line:
    return inspect_request(request_capture(value, default_name=default_name))


def _response(value: Mapping[str, object], default_name: str, *, with_count: bool) -> Line:
    return inspect_answer(answer_capture(value, default_name=default_name), with_count=with_count)


def inspect_request(capture: RequestCapture) -> Line:
    """What admission would read of it."""
    line: Line = {
        "name": capture.name,
        "verdict": "count",
        "status": None,
        "format": None,
        "model": None,
        "stream": None,
        "input_tokens": None,
        "max_output_tokens": None,
        "n": None,
        "parts": {},
        "error": None,
    }
    try:
        facts = read_request(
            # As admission does: a query may hold a credential.
            capture.path.partition("?")[0],
            capture.body,
            content_type=capture.headers.get("content-type"),
            content_encoding=capture.headers.get("content-encoding"),
            limits=ReadLimits(),
            host=capture.headers.get(":authority") or capture.headers.get("host") or "",
        )
    except RequestError as error:
        line.update(verdict=f"reject_{error.status}", status=error.status, error=error.message)
        return line
    if isinstance(facts, Unmetered):
        reason = f"not metered: {facts.reason}" + (" (free)" if facts.is_free else "")
        line.update(verdict="pass_through", format=facts.wire_format or None, error=reason)
        return line
    cap = facts.output_cap_tokens
    line.update(
        format=facts.wire_format,
        model=facts.model,
        stream=facts.stream,
        input_tokens=facts.input_tokens,
        max_output_tokens=cap // facts.choices if cap else None,
        n=facts.choices,
        parts=_parts(facts),
    )
    return line


def _parts(facts: RequestFacts) -> dict[str, int]:
    """The input by kind in the provider's tokens. What belongs to no kind is the overhead."""
    parts = {
        kind: tokens if kind in MEDIA_KINDS else tokens * facts.factor_percent // 100
        for kind, tokens in facts.parts.items()
    }
    overhead = facts.input_tokens - sum(parts.values())
    return {**parts, "overhead": overhead} if overhead > 0 else parts


def inspect_answer(capture: AnswerCapture, *, with_count: bool = False) -> Line:
    """What metering would read of it, and from where the settled numbers would come."""
    reader = answer_reader(
        capture.wire_format,
        content_type=capture.content_type,
        content_encoding=capture.content_encoding,
        hides_usage=False,
        encoding=DEFAULT_ENCODING,
        header=lambda name: capture.headers.get(name, ""),
    )
    is_good = 200 <= capture.status < 300
    if is_good:
        for chunk in capture.chunks:
            reader.feed(chunk, end=False)
        reader.feed(b"", end=True)
    usage = reader.usage
    error = None
    if not is_good:
        error = f"the provider answered with status {capture.status}"
    elif reader.error:
        error = "the provider reported an error"
    line: Line = {
        "name": capture.name,
        "format": capture.wire_format,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "usage_known": usage.is_known,
        "source": _source(reader),
        "error": error,
    }
    if with_count:
        line["counted_output_tokens"] = reader.counted_output_tokens()
    return line


def _source(reader: AnswerReader) -> str:
    if reader.usage.is_known:
        return "reported"
    if reader.unread:
        return "reserve"
    if reader.error and not reader.saw_output:
        return "none"
    return "counted" if reader.saw_output or reader.counted_output_tokens() else "none"
