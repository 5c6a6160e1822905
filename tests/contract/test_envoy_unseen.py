"""Requests that admission never sees, told from the real Envoy's access log entries."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from google.protobuf import json_format

from extproc.core.handles import UNMETERED_KEY
from extproc.envoy_io.unseen import logged_path, unseen_reason
from tests.support.envoy_rig import KEY, Rig, running

HEALTH_CHECK = {
    "name": "envoy.filters.http.health_check",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck",
        "pass_through_mode": True,
        "headers": [{"name": ":path", "string_match": {"exact": "/healthz"}}],
    },
}


def manager_of(config: dict[str, Any]) -> Any:
    (listener,) = config["static_resources"]["listeners"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def offer_upgrades(config: dict[str, Any]) -> None:
    """What an operator may have on a connection manager of theirs."""
    manager_of(config)["upgrade_configs"] = [{"upgrade_type": "websocket"}]


def a_route_of_their_own(config: dict[str, Any]) -> None:
    """Upgrades offered, and a route that lacks what the include says."""
    offer_upgrades(config)
    (host,) = manager_of(config)["route_config"]["virtual_hosts"]
    del host["routes"][0]["route"]["upgrade_configs"]


def no_route_for_strangers(config: dict[str, Any]) -> None:
    (host,) = manager_of(config)["route_config"]["virtual_hosts"]
    host["routes"][-1]["match"] = {"prefix": "/v1/"}
    moved = {"match": {"prefix": "/old"}, "redirect": {"path_redirect": "/v1/models"}}
    host["routes"].insert(0, moved)


async def entry_of(rig: Rig) -> HTTPAccessLogEntry:
    return json_format.ParseDict(await rig.ending(), HTTPAccessLogEntry())


async def get(rig: Rig, path: str, **headers: str) -> int:
    url = f"{rig.url}{path}"
    async with rig.client.get(url, headers={**KEY, **headers}, allow_redirects=False) as answer:
        return answer.status


async def test_a_request_without_a_body_is_sent_on_and_told(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert await get(rig, "/v1/chat/completions?key=secret") == 200
        assert rig.server.asked == []
        entry = await entry_of(rig)
        assert unseen_reason(entry) == ("no_body", True)
        assert logged_path(entry) == "/v1/chat/completions"


async def test_a_route_without_the_filter_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, unmetered_prefixes=("/v1/models",)) as rig:
        await rig.post(path="/v1/models")
        assert rig.server.asked == []
        assert unseen_reason(await entry_of(rig)) == ("not_asked", True)


async def test_an_admission_that_reserved_nothing_is_told_by_its_own_mark(tmp_path: Path) -> None:
    """Without the mark it would look like a route without the filter."""
    async with running(tmp_path) as rig:
        await rig.post()
        assert len(rig.server.asked) == 1
        assert unseen_reason(await entry_of(rig)) == ("not_asked", True)
        rig.server.metadata = {UNMETERED_KEY: "unknown_path"}
        await rig.post()
        told = (await entry_of(rig)).common_properties.metadata.filter_metadata["llm"]
        assert told.fields[UNMETERED_KEY].string_value == "unknown_path"


async def test_the_include_refuses_upgrades_that_the_connection_manager_offers(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, change=offer_upgrades) as rig:
        status = await get(rig, "/v1/realtime", connection="upgrade", upgrade="websocket")
        assert (status, rig.provider.requests) == (403, [])
        assert unseen_reason(await entry_of(rig)) == ("upgrade", False)


async def test_an_upgrade_that_a_route_lets_through_is_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"unmetered_prefixes": ("/v1/realtime",)}
    async with running(tmp_path, change=a_route_of_their_own, **options) as rig:
        async with rig.client.ws_connect(f"{rig.url}/v1/realtime", headers=KEY) as socket:
            await socket.receive()
        assert (len(rig.provider.requests), rig.server.asked) == (1, [])
        assert unseen_reason(await entry_of(rig)) == ("upgrade", True)


async def test_a_metered_route_without_the_include_sends_no_upgrade_on(tmp_path: Path) -> None:
    """The buffer waits for the end of a body that has none."""
    async with running(tmp_path, change=a_route_of_their_own) as rig:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await get(rig, "/v1/realtime", connection="upgrade", upgrade="websocket")
        assert (rig.provider.requests, rig.server.asked) == ([], [])
        assert unseen_reason(await entry_of(rig)) is None


async def test_a_path_without_a_route_is_told_and_a_redirect_is_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, change=no_route_for_strangers) as rig:
        assert await get(rig, "/wp-admin") == 404
        assert unseen_reason(await entry_of(rig)) == ("not_routed", False)
        assert await get(rig, "/old") == 301
        assert unseen_reason(await entry_of(rig)) is None


async def test_health_checks_refusals_and_strangers_make_no_entry(tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        manager_of(config)["http_filters"].insert(0, HEALTH_CHECK)

    async with running(tmp_path, change=change) as rig:
        assert await get(rig, "/healthz") == 200
        assert await get(rig, "/v1/models", authorization="Bearer nobody") == 401
        rig.server.refuse = True
        assert (await rig.post())[0] == 429
        assert await get(rig, "/v1/models") == 200
        assert (await entry_of(rig)).request.path == "/v1/models"
        assert rig.server.endings.empty()


@pytest.mark.parametrize(
    ("path", "shown"), [("/a?key=secret", "/a"), ("/\u00e9\n\x00", "/???"), ("/" + "a" * 500, 100)]
)
def test_a_path_is_logged_without_its_query(path: str, shown: str | int) -> None:
    entry = HTTPAccessLogEntry()
    entry.request.path = path
    found = logged_path(entry)
    assert (len(found) if isinstance(shown, int) else found) == shown
