"""`tokenweir inspect`: every recorded case by the command; files that are no captures."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extproc import cli
from extproc.providers import captures
from tests.unit.provider_cases import DATA

REQUEST_KEYS = {
    "name",
    "verdict",
    "status",
    "format",
    "model",
    "stream",
    "input_tokens",
    "max_output_tokens",
    "n",
    "parts",
    "error",
}
ANSWER_KEYS = {
    "name",
    "format",
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "reasoning_tokens",
    "usage_known",
    "source",
    "error",
}
Capsys = pytest.CaptureFixture[str]


def run(capsys: Capsys, *args: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    status = cli.main(["inspect", *map(str, args)])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


def cases(kind: str) -> tuple[list[Path], list[dict[str, Any]]]:
    files = sorted((DATA / kind).glob("*.json"))
    assert len(files) > 20
    return files, [json.loads(file.read_text())["expect"] for file in files]


def test_every_recorded_request(capsys: Capsys) -> None:
    files, expected = cases("requests")
    status, lines, err = run(capsys, "request", *files)
    assert (status, err) == (0, "")
    assert [line["name"] for line in lines] == [file.stem for file in files]
    for line, expect in zip(lines, expected, strict=True):
        name, extra = line["name"], expect.get("extra", {})
        assert set(line) == REQUEST_KEYS, name
        if expect["must"] == "reject_400":
            assert line["verdict"] in ("reject_400", "reject_413", "reject_415"), name
            assert line["verdict"] == f"reject_{line['status']}", name
            assert line["error"], name
            continue
        assert line["verdict"] == expect["must"], name
        assert line["status"] is None, name
        if expect["must"] == "pass_through":
            assert line["error"], name
            continue
        for key in ("model", "stream", "max_output_tokens"):
            assert line[key] == expect[key], (name, key)
        if "reserve_output_tokens" in extra:
            assert line["n"] * line["max_output_tokens"] == extra["reserve_output_tokens"], name
        else:
            assert line["n"] == 1, name
        assert line["error"] is None, name
        assert line["input_tokens"] >= extra["content_tokens_o200k"], name
        assert sum(line["parts"].values()) == line["input_tokens"], name
        assert all(tokens > 0 for tokens in line["parts"].values()), name


def test_every_recorded_answer(capsys: Capsys) -> None:
    files, expected = cases("responses")
    status, lines, err = run(capsys, "response", *files)
    assert (status, err) == (0, "")
    for file, line, expect in zip(files, lines, expected, strict=True):
        name, extra = line["name"], expect.get("extra", {})
        assert name == file.stem
        assert set(line) == ANSWER_KEYS, name
        assert line["source"] in ("reported", "counted", "reserve", "none"), name
        assert (line["source"] == "reported") is line["usage_known"], name
        if line["usage_known"] is not expect["usage_known"]:
            # Only where the case accepts both.
            assert "acceptable" in extra or "input_tokens_may_be" in extra, name
            continue
        for key in ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"):
            accepted = [expect[key], *extra.get(f"accept_{key}", [])]
            if f"{key}_may_be" in extra:
                accepted.append(extra[f"{key}_may_be"])
            assert line[key] in accepted, (name, key)


def test_the_source_says_what_would_be_charged(capsys: Capsys) -> None:
    names = {
        "openai_json_cached_exceeds_prompt": "reported",
        "openai_json_gzip_truncated": "counted",
        "anthropic_sse_delta_without_usage_key": "counted",
        "openai_sse_error_first_event_200": "none",
        "openai_sse_http_429_upstream_json_error": "none",
    }
    files = [DATA / "responses" / f"{name}.json" for name in names]
    _, lines, _ = run(capsys, "response", "--counted", *files)
    assert {line["name"]: line["source"] for line in lines} == names
    assert {frozenset(line) for line in lines} == {
        frozenset(ANSWER_KEYS | {"counted_output_tokens"})
    }
    by_name = {line["name"]: line for line in lines}
    assert by_name["openai_json_gzip_truncated"]["counted_output_tokens"] > 0
    assert "429" in by_name["openai_sse_http_429_upstream_json_error"]["error"]
    assert by_name["openai_sse_error_first_event_200"]["error"]
    assert by_name["openai_json_cached_exceeds_prompt"]["error"] is None


def test_sound_that_tells_no_tokens_leaves_the_reserve(tmp_path: Path, capsys: Capsys) -> None:
    sound = base64.b64encode(b"\xff\xfb\x90" + bytes(500)).decode()
    answer = {"path": "/v1/audio/speech", "content_type": "audio/mpeg", "body_b64": sound}
    _, (line,), _ = run(capsys, "response", write(tmp_path, "speech.json", answer))
    assert (line["format"], line["source"]) == ("openai_speech", "reserve")


def capture(**fields: object) -> dict[str, object]:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [], "tools": [{"name": "x"}]}
    return {
        "path": "/v1/messages?key=secret",
        "body_b64": base64.b64encode(json.dumps(body).encode()).decode(),
        **fields,
    }


def write(folder: Path, name: str, value: object) -> Path:
    file = folder / name
    file.write_text(json.dumps(value), encoding="utf-8")
    return file


def test_parts_are_in_the_providers_tokens_and_chunks_are_joined(
    tmp_path: Path, capsys: Capsys
) -> None:
    whole = write(tmp_path, "whole.json", capture())
    raw = base64.b64decode(str(capture()["body_b64"]))
    chunks = [base64.b64encode(raw[at : at + 7]).decode() for at in range(0, len(raw), 7)]
    cut = write(tmp_path, "cut.json", capture(chunks_b64=chunks, body_b64=5))
    status, (one, two), err = run(capsys, "request", whole, cut)
    assert (status, err) == (0, "")
    assert (one.pop("name"), two.pop("name")) == ("whole", "cut")
    assert one == two
    assert sum(one["parts"].values()) == one["input_tokens"]
    assert one["parts"]["overhead"] >= 346  # the prompt that the provider adds for tools


def test_an_answer_may_name_its_path_and_headers_only(tmp_path: Path, capsys: Capsys) -> None:
    answer = {"usage": {"input_tokens": 3, "output_tokens": 4}, "type": "message"}
    body = base64.b64encode(json.dumps(answer).encode()).decode()
    headers = {":status": "200", "Content-Type": "application/json"}
    good = {"path": "/v1/messages", "headers": headers, "body_b64": body}
    late = {**good, "headers": {":status": "503"}}
    files = [write(tmp_path, "a.json", good), write(tmp_path, "b.json", late)]
    status, lines, _ = run(capsys, "response", *files)
    assert status == 0
    assert [line["format"] for line in lines] == ["anthropic_messages"] * 2
    assert [line["source"] for line in lines] == ["reported", "none"]
    assert (lines[0]["input_tokens"], lines[0]["output_tokens"]) == (3, 4)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    typed = io.TextIOWrapper(io.BytesIO(json.dumps(capture()).encode()))
    monkeypatch.setattr(sys, "stdin", typed)
    status, (line,), _ = run(capsys, "request", "-")
    assert (status, line["name"], line["verdict"]) == (0, "-", "count")


@pytest.mark.parametrize(
    ("verb", "content", "said"),
    [
        ("request", b"", "no JSON"),
        ("request", b"{", "no JSON"),
        ("request", b"\xff\xfe", "no JSON"),
        ("request", b"[]", "no JSON object"),
        ("request", b'{"x":' + b"[" * 100_000, "nested too deeply"),
        ("request", b'{"x":' + b"9" * 5000 + b"}", "no JSON"),
        ("request", b"{}", "'path' is missing"),
        ("request", b'{"path":5}', "'path' must be a string"),
        ("request", b'{"path":"/x","headers":[]}', "'headers' must be"),
        ("request", b'{"path":"/x","headers":{"a":1}}', "'headers' must be"),
        ("request", b'{"path":"/x","body_b64":"?"}', "'body_b64' is no base64"),
        ("request", b'{"path":"/x","body_b64":7}', "'body_b64' must be a string"),
        ("request", b'{"path":"/x","chunks_b64":"YQ=="}', "'chunks_b64' must be a list"),
        ("request", b'{"path":"/x","chunks_b64":["YQ==","a"]}', "'chunks_b64[1]' is no base64"),
        ("response", b"{}", "'provider_format' is missing"),
        ("response", b'{"provider_format":"nobodys"}', "not a format that is known: 'nobodys'"),
        ("response", b'{"path":"/"}', "nothing is metered"),
        ("response", b'{"provider_format":"openai_chat","http_status":true}', "'http_status'"),
        ("response", b'{"provider_format":"openai_chat","http_status":99}', "'http_status'"),
        ("response", b'{"path":"/v1/messages","headers":{":status":"x"}}', "'http_status'"),
    ],
)
def test_a_file_that_is_no_capture_is_named_and_the_others_are_read(
    verb: str, content: bytes, said: str, tmp_path: Path, capsys: Capsys
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    kind = "requests" if verb == "request" else "responses"
    good = sorted((DATA / kind).glob("*.json"))[0]
    status, lines, err = run(capsys, verb, bad, tmp_path / "none.json", tmp_path, good)
    assert status == cli.EXIT_USAGE
    assert [line["name"] for line in lines] == [good.stem]
    first, second, third = err.splitlines()
    assert first.startswith(f"tokenweir: {bad}: ")
    assert said in first
    assert "No such file" in second
    assert "directory" in third


def test_a_file_is_never_read_beyond_the_bound(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "MAX_FILE_BYTES", 1024 * 1024)
    status, lines, err = run(capsys, "request", "/dev/zero")
    assert (status, lines) == (2, [])
    assert "larger than 1 MB" in err


def test_a_closed_pipe_ends_it_quietly() -> None:
    file = sorted((DATA / "requests").glob("*.json"))[0]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "extproc.cli", "inspect", "request", str(file)],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
