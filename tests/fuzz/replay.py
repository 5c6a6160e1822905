"""Looks at one finding's file again."""

import json
from pathlib import Path

from extproc.providers.captures import answer_capture, request_capture
from tests.fuzz.cases import AnswerCase, RequestCase
from tests.fuzz.findings import Case, check
from tests.fuzz.request_seeds import RequestSeed


def replay(file: Path) -> int:
    """Raises what was found; 0 where nothing is found any more."""
    check(case_in(file))
    print(f"{file}: nothing is found any more")
    return 0


def case_in(file: Path) -> Case:
    """The case that a finding's capture file holds."""
    value = json.loads(file.read_bytes())
    if "pieces" in value:
        return [str(piece) for piece in value["pieces"]]
    if "chunks_b64" in value:
        answer = answer_capture(value, default_name=file.stem)
        return AnswerCase(
            answer.wire_format,
            list(answer.chunks),
            answer.content_type,
            answer.content_encoding,
            value["hides_usage"],
        )
    request = request_capture(value, default_name=file.stem)
    seed = RequestSeed(
        request.path,
        request.body,
        request.headers.get("content-type"),
        request.headers.get("content-encoding"),
        request.headers[":authority"],
    )
    return RequestCase("", seed, value["strict_cap_tokens"])
