"""What a fuzzer found: told apart by where it broke, made small, and written as a capture file."""

import base64
import json
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.cases import (
    NAMES,
    AnswerCase,
    RequestCase,
    answer_case,
    request_case,
    text_case,
)
from tests.fuzz.choices import Choices
from tests.fuzz.oracles import Finding, check_answer, check_request, check_text

Case = RequestCase | AnswerCase | list[str]
_MOST_TRIES = 3000


def case_of(data: bytes) -> Case:
    """The case that a fuzzer's input stands for."""
    choices = Choices(data)
    kind = choices.below(16)
    if kind == 15:
        return text_case(choices)
    wire_format = choices.pick(NAMES)
    return (request_case if kind % 2 else answer_case)(wire_format, choices)


def check(case: Case) -> None:
    """Raises what the case finds: a Finding, or whatever escaped from a reader."""
    if isinstance(case, RequestCase):
        check_request(case)
    elif isinstance(case, AnswerCase):
        check_answer(case)
    else:
        check_text(case)


def place_of(error: BaseException) -> str:
    """The kind of an error and the line that raised it: the same for the same fault."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, Finding):
        calls = [frame for frame in frames if frame.name.startswith(("check_", "_check"))]
        at = f"{Path(calls[-1].filename).name}:{calls[-1].lineno}" if calls else at
    return f"{type(error).__name__} at {at}"


def smaller(data: bytes, place: str) -> bytes:
    """A shorter input that still breaks at ``place``, found by leaving pieces out."""
    tries = 0
    size = max(1, len(data) // 2)
    while size and tries < _MOST_TRIES:
        at = 0
        while at < len(data) and tries < _MOST_TRIES:
            for replaced in (b"", bytes(min(size, len(data) - at))):
                shorter = data[:at] + replaced + data[at + size :]
                tries += 1
                if shorter != data and _breaks(shorter, place):
                    data = shorter
                    break
            at += size
        size //= 2
    return data


def _breaks(data: bytes, place: str) -> bool:
    try:
        check(case_of(data))
    except Exception as error:  # noqa: BLE001 - whatever escapes is what is looked for
        return place_of(error) == place
    return False


def write_capture(case: Case, error: BaseException, folder: Path, number: int) -> Path:
    """A file as docs/captures.md describes it, with what was found in fields that are ignored."""
    capture: dict[str, object] = {"finding": f"{place_of(error)}: {error}"[:2000]}
    if isinstance(case, RequestCase):
        kind, body = "request", case.seed.body
        headers = {
            "content-type": case.seed.content_type,
            "content-encoding": case.seed.content_encoding,
            ":authority": case.seed.host,
        }
        capture |= {
            "path": case.seed.path,
            "headers": {name: text for name, text in headers.items() if text is not None},
            "body_b64": base64.b64encode(body).decode(),
            "strict_cap_tokens": case.strict_cap_tokens,
        }
    elif isinstance(case, AnswerCase):
        kind = "answer"
        capture |= {
            "provider_format": case.wire_format,
            "http_status": 200,
            "content_type": case.content_type,
            "content_encoding": case.content_encoding,
            "chunks_b64": [base64.b64encode(chunk).decode() for chunk in case.chunks],
            "hides_usage": case.hides_usage,
        }
    else:
        kind = "text"
        capture |= {"pieces": case}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{kind}-{number}.json"
    file.write_text(json.dumps(capture, indent=1) + "\n")
    return file


class Campaign:
    """One run of a fuzzer: executions, distinct findings and their files."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._seen: set[str] = set()
        self.executions = 0

    @property
    def findings(self) -> int:
        return len(self._seen)

    def run(self, data: bytes) -> None:
        """One execution. Never raises for what it finds."""
        self.executions += 1
        try:
            check(case_of(data))
        except Exception as error:  # noqa: BLE001 - whatever escapes is what is looked for
            place = place_of(error)
            if place not in self._seen:
                self._seen.add(place)
                self._keep(data, place)

    def _keep(self, data: bytes, place: str) -> None:
        case = case_of(smaller(data, place))
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 - the same again, of the smaller case
            text = "".join(traceback.format_exception(error)[-3:])
            file = write_capture(case, error, self._folder, self.findings)
            self._say(f"finding {self.findings}: {place}\n{text}  {file}")
