"""Headers that say whom a request belongs to: who is believed, and who gets to see them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.envoy_rig import KEY, NAME, running


def _set_header(name: str, value: str) -> dict[str, Any]:
    """What a filter of an operator's does: ext_authz, Lua."""
    header = {"header": {"key": name, "value": value}}
    return {
        "name": "yours",
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"append": header}]},
        },
    }


@pytest.mark.parametrize("has_filter", [False, True])
async def test_a_trusted_header_is_only_what_a_filter_here_says(
    has_filter: bool, tmp_path: Path
) -> None:
    def change(config: dict[str, Any]) -> None:
        (listener,) = config["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        if has_filter:
            manager["http_filters"].insert(1, _set_header("x-user", "alice"))

    options: dict[str, Any] = {
        "trusted_headers": ("x-user",),
        "unmetered_prefixes": ("/v1/models",),
    }
    async with running(tmp_path, change=change, **options) as rig:
        claim = {**KEY, "x-user": "mallory", "X-USER": "trent"}
        await rig.post(headers=claim)
        seen = rig.server.attribute("request.headers['x-user']")
        assert seen == ("alice" if has_filter else None)
        await rig.post(headers=claim, path="/v1/models")
        assert ["x-user" in request for request in rig.provider.requests] == [False, False]


async def test_a_header_of_the_front_is_believed_and_goes_no_further(tmp_path: Path) -> None:
    async with running(tmp_path, front_headers=("x-user",)) as rig:
        await rig.post(headers={**KEY, "x-user": "alice"})
        assert rig.server.attribute("request.headers['x-user']") == "alice"
        assert "x-user" not in rig.provider.requests[0]


async def test_the_readable_log_says_who_was_refused(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with running(tmp_path, access_log_path=str(file)) as rig:
        rig.server.refuse = True
        await rig.post(headers={**KEY, NAME: "team-b"})
    line = json.loads(file.read_text())  # Envoy writes it at its end at the latest
    assert (line["code"], line["identity"], line["service"]) == (429, "team-a", None)
