"""compose/: no container engine is needed to see that every reference in it leads somewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.cli import main
from extproc.settings import load_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "compose"
STACK: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def test_every_dependency_can_reach_the_state_that_is_waited_for() -> None:
    for service in SERVICES.values():
        for name, wanted in service.get("depends_on", {}).items():
            other = SERVICES[name]
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in other, name
            else:
                assert wanted["condition"] == "service_completed_successfully"
                assert "restart" not in other, f"{name} would never be completed"


def test_every_source_and_volume_exists() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).is_file()
            else:
                assert source in STACK["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_our_images_are_built_from_a_stage_that_exists(name: str) -> None:
    build = OURS[name]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    assert f" AS {build['target']}\n" in DOCKERFILE


def test_the_dockerfile_copies_what_exists_and_what_is_sent_to_the_builder() -> None:
    sent = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert len(copied) == 9
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in sent, source


@pytest.mark.parametrize("name", OURS)
def test_our_commands_are_known(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --help behind it argparse reads the command and does nothing."""
    words = [word for word in OURS[name]["command"] if word not in ("0.0.0.0", "8000")]
    with pytest.raises(SystemExit) as ended:
        main([*(word for word in words if not word.startswith("--")), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in words if word.startswith("--"))


def test_our_settings_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in OURS["serve"]["environment"].items():
        monkeypatch.setenv(key, re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value))
    settings = load_settings()
    assert settings.redis.url == "redis://redis:6379/0"
    assert settings.database.url == "mysql+pymysql://tokenweir:tokenweir@mysql:3306/tokenweir"
    port = settings.server.listen.rpartition(":")[2]
    assert SERVICES["serve"]["healthcheck"]["test"][-1] == f"127.0.0.1:{port}"
    assert SERVICES["mysql"]["environment"]["MYSQL_DATABASE"] == "tokenweir"


def test_envoy_reaches_services_of_the_stack() -> None:
    config = yaml.safe_load((FOLDER / "envoy.yaml").read_text("utf-8"))
    reached = {}
    for cluster in config["static_resources"]["clusters"]:
        endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        address = endpoint["address"]["socket_address"]
        reached[address["address"]] = str(address["port_value"])
    assert reached == {
        "serve": OURS["serve"]["environment"]["TOKENWEIR_SERVER__LISTEN"].rpartition(":")[2],
        "provider": SERVICES["provider"]["command"][-1],
    }
    (listener,) = config["static_resources"]["listeners"]
    (port,) = SERVICES["envoy"]["ports"]
    assert port.endswith(f":{listener['address']['socket_address']['port_value']}")
    admin = config["admin"]["address"]["socket_address"]["port_value"]
    assert f"/dev/tcp/127.0.0.1/{admin} " in json.dumps(SERVICES["envoy"]["healthcheck"])
