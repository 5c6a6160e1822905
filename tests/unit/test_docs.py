"""What the documents say can be typed: settings are accepted, files exist, commands parse."""

import re
import shlex
from pathlib import Path

import pytest
from pydantic import BaseModel

from extproc.cli import _parser
from extproc.settings import HeaderSource, Settings, load_settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("compose/*.md")])
SETTINGS = (ROOT / "docs/settings.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language, without the indent of a list item."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENWEIR_CONFIG", raising=False)


def test_the_settings_that_are_shown_are_the_defaults(tmp_path: Path) -> None:
    (shown,) = blocks(SETTINGS, "toml")
    file = tmp_path / "settings.toml"
    file.write_text(shown, encoding="utf-8")
    assert load_settings(file).model_dump() == Settings().model_dump()


def test_every_setting_is_shown() -> None:
    (shown,) = blocks(SETTINGS, "toml")
    for section, field in Settings.model_fields.items():
        assert f"[{section}" in shown
        value = field.get_default(call_default_factory=True)
        for key in value.model_dump() if isinstance(value, BaseModel) else ():
            assert re.search(rf"^(# )?(\[\[?{section}\.)?{key}\b", shown, re.MULTILINE), key


def test_the_variables_that_are_shown_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = blocks(SETTINGS, "sh")
    exports = re.findall(r"^export (\w+)=(.*)$", shown, re.MULTILINE)
    assert len(exports) > 1
    for name, value in exports:
        monkeypatch.setenv(name, *shlex.split(value))
    settings = load_settings()
    assert settings.database.timeout_ms == 3000
    assert settings.identity.sources == (HeaderSource(kind="header", name="x-team"),)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def commands(page: Path) -> list[list[str]]:
    text = "\n".join(blocks(page.read_text("utf-8"), "sh")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line and line[0].endswith("tokenweir")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_are_known(page: Path) -> None:
    for command in commands(page):
        line = command[: command.index(">")] if ">" in command else command
        _parser().parse_args(line)


def test_there_are_commands_to_look_at() -> None:
    assert len([command for page in PAGES for command in commands(page)]) >= 4
