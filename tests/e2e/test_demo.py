"""`tokenweir demo` and `tokenweir up` as a user runs them: real Envoy, Valkey and clients."""

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LAST_LINE = re.compile(
    r"demo: requests=(\d+) admitted=(\d+) refused=(\d+)"
    r" settled=(\d+) released=(\d+) open=(\d+) drift=(\d+)"
)
CLI = [sys.executable, "-m", "extproc.cli"]


@pytest.fixture(scope="module")
def tour() -> str:
    """The output of one whole tour."""
    done = subprocess.run(
        [*CLI, "demo"], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def row(tour: str, step: str) -> list[str]:
    """The cells of the table's row of a step."""
    (found,) = [line for line in tour.splitlines() if line.startswith(f"{step}  ")]
    return re.split(r"\s{2,}", found)


def test_the_books_balance(tour: str) -> None:
    match = LAST_LINE.fullmatch(tour.splitlines()[-1])
    assert match is not None, tour
    requests, admitted, refused, settled, released, left_open, drift = map(int, match.groups())
    assert (left_open, drift) == (0, 0)
    assert requests == admitted + refused
    assert admitted == settled + released
    assert refused == 6  # over RPM twice, over TPM, disabled, without limits, unknown key
    assert released == 3  # 500, 429 and the reset


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ("request 3 of 2 a minute", "429 requests"),
        ("request 2, 300 tokens a minute", "429 tokens"),
        ("upstream answers 500", "500"),
        ("upstream answers 429", "429"),
        ("upstream resets", "503"),
        ("client leaves in mid-stream", "left"),
        ("request 2 of 1 a minute", "429"),
        ("limit raised to 5", "200"),
        ("service disabled", "403"),
        ("service without limits", "403"),
        ("unknown API key", "401"),
    ],
)
def test_every_step_ends_as_its_name_says(tour: str, step: str, status: str) -> None:
    assert row(tour, step)[2].startswith(status)


def test_usage_is_hidden_from_who_did_not_ask(tour: str) -> None:
    assert row(tour, "chat streamed, usage asked")[2] == "200, usage chunk"
    assert row(tour, "chat streamed, not asked")[2] == "200, no usage chunk"


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        ("chat", "complete"),
        ("no usage, plain", "complete_estimated"),
        ("no usage, streamed", "complete_estimated"),
        ("client leaves in mid-stream", "client_gone"),
        ("upstream answers 500", "upstream_refused"),
        ("upstream resets", "upstream_refused"),
    ],
)
def test_outcomes_are_told_apart(tour: str, step: str, outcome: str) -> None:
    assert row(tour, step)[3] == outcome


def test_every_charge_is_what_the_provider_produced(tour: str) -> None:
    rows = [re.split(r"\s{2,}", line) for line in tour.splitlines() if "  demo-" in line]
    admitted = [cells for cells in rows if len(cells) == 9 and cells[3] != "-"]
    assert len(admitted) > 12
    assert [cells[7] for cells in admitted] == [cells[6] for cells in admitted]


def test_a_refusal_is_explained(tour: str) -> None:
    """After the table the command itself is run, for the request that was over the tokens."""
    shown = re.search(r"^\$ tokenweir explain (\S+)\n(.*?)\n\n", tour, re.MULTILINE | re.DOTALL)
    assert shown is not None, tour
    lines = [line.strip() for line in shown[2].splitlines()]
    assert lines[0] == f"refused: request {shown[1]} at root demo-tpm"
    left = int(row(tour, "request 2, 300 tokens a minute")[8])
    told = "".join(lines)
    asked = re.search(r"asked: +(\d+) tokens", told)
    assert asked is not None, told
    assert int(asked[1]) > left > 0
    assert "refused by:service_limit total_tpm for service:demo-tpm, minute " in told
    assert f"asked {asked[1]}, left {left} of 300 tokens; fits from " in told
    again = f"--service demo-tpm --subject provider=openai --model gpt-4o --tokens {asked[1]} "
    assert f"tokenweir explain {again}" in told


def test_an_impatient_second_interrupt_leaves_no_child_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    output = tmp_path / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [*CLI, "up", "--run-dir", str(run_dir)], cwd=ROOT, stdout=sink, stderr=sink
        )
    until = time.monotonic() + 60
    while not (run_dir / "work.log").exists():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < until
        time.sleep(0.02)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    process.wait(30)
    left = [
        found
        for found in psutil.process_iter(["cmdline", "environ"])
        if str(run_dir) in " ".join(found.info["cmdline"] or [])
        or str(run_dir) in str(found.info["environ"])
    ]
    assert left == []


def test_up_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [*CLI, "up", "--run-dir", str(tmp_path / "run")], cwd=ROOT, stdout=sink, stderr=sink
        )
    try:
        until = time.monotonic() + 60
        while "Ctrl-C" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.05)
        address = re.search(r"^Envoy +(\S+)$", output.read_text(), re.MULTILINE)
        assert address is not None
        # What it prints about limits works as it stands there.
        shown = re.search(r"^  export TOKENWEIR.*\n.*\n.* limits set .*$", output.read_text(), re.M)
        assert shown is not None
        lines = shown[0].replace("--rpm 60 ", "--rpm 77 ")
        subprocess.run(["sh", "-ec", lines], cwd=ROOT, check=True, timeout=60)
        request = urllib.request.Request(
            f"{address[1]}/v1/chat/completions",
            data=b'{"model":"gpt-4o","messages":[{"role":"user","content":"Hello"}]}',
            headers={
                "authorization": "Bearer demo-key-svc-chat",
                "content-type": "application/json",
            },
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=10) as response:
            assert response.headers["x-ratelimit-limit-requests"] == "77"
        # So does what it prints about refusals.
        why = re.search(r"^  .* explain REQUEST_ID", output.read_text(), re.M)
        assert why is not None
        subprocess.run(
            ["sh", "-ec", lines.replace("--tpm 10000", "--tpm 1")], cwd=ROOT, check=True, timeout=60
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            direct.open(request, timeout=10)
        with refused.value as answer:
            assert answer.code == 429
            request_id = answer.headers["x-request-id"]
        exports = lines.rpartition("\n")[0]
        command = why[0].replace("REQUEST_ID", request_id)
        told = subprocess.run(
            ["sh", "-ec", f"{exports}\n{command}"],
            cwd=ROOT,
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
        ).stdout
        assert told.startswith(f"refused: request {request_id} at root svc-chat\n")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, output.read_text()
