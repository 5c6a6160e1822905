"""What the configuration relies on, asked of the real Envoy with a scripted server behind it."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.demo.processes import free_ports
from tests.support.envoy_rig import HEADERS, KEY, NAME, ROOT, Rig, running


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    headers = {"authorization": "Bearer %ENVIRONMENT(KEY)%"}
    async with running(
        tmp_path, upstream_headers=headers, unmetered_prefixes=("/v1/models",)
    ) as started:
        yield started


async def test_metadata_of_admission_becomes_headers_and_what_is_absent_becomes_none(
    rig: Rig,
) -> None:
    rig.server.metadata = {"rid": "r1", "limit_tokens": "100", "reset_tokens": "1.5s"}
    _, _, headers = await rig.post()
    found = {name: value for name, value in headers.items() if name.startswith(HEADERS)}
    assert found == {f"{HEADERS}limit-tokens": "100", f"{HEADERS}reset-tokens": "1.5s"}


async def test_metering_sees_the_providers_headers_and_the_client_ours(rig: Rig) -> None:
    rig.provider.headers = {
        f"{HEADERS}remaining-tokens": "29000",
        f"{HEADERS}limit-requests": "500",
    }
    rig.server.metadata = {"rid": "r1", "limit_tokens": "100", "remaining_tokens": "60"}
    _, _, headers = await rig.post()
    seen = {name: v for name, v in rig.server.seen_headers.items() if name.startswith(HEADERS)}
    assert seen == rig.provider.headers
    found = {name: value for name, value in headers.items() if name.startswith(HEADERS)}
    assert found == {
        f"{HEADERS}limit-tokens": "100",
        f"{HEADERS}remaining-tokens": "60",
        f"{HEADERS}limit-requests": "500",  # where we say nothing the provider's stands
    }


async def test_a_refusal_has_its_own_headers_and_reaches_no_provider(rig: Rig) -> None:
    rig.server.refuse = True
    status, _, headers = await rig.post()
    assert (status, headers[f"{HEADERS}limit-tokens"]) == (429, "7")
    assert rig.provider.requests == []


async def test_the_clients_word_about_who_it_is_counts_for_nothing(rig: Rig) -> None:
    await rig.post(headers={**KEY, NAME: "team-b"})
    assert rig.server.attribute(f"request.headers['{NAME}']") == "team-a"
    assert NAME not in rig.provider.requests[0]


async def test_without_a_filter_that_authenticates_a_forged_identity_is_gone(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, api_keys=None) as rig:
        await rig.post(headers={NAME: "team-b"})
        assert rig.server.attribute(f"request.headers['{NAME}']") is None


async def test_keys_are_known_as_each_providers_clients_send_them(rig: Rig) -> None:
    names = ("x-api-key", "x-goog-api-key", "api-key")
    signed = {"authorization": "AWS4-HMAC-SHA256 Credential=A/20261130/x/bedrock/aws4_request"}
    for headers in (
        {"authorization": "Bearer key-a"},
        *({name: "key-a"} for name in names),
        signed | {"x-api-key": "key-a"},
    ):
        rig.server.asked.clear()
        status, _, _ = await rig.post(headers=headers)
        assert (status, rig.server.attribute(f"request.headers['{NAME}']")) == (200, "team-a")
    for headers in ({"authorization": "Bearer key-b"}, {"x-api-key": "key-b"}, signed):
        status, _, _ = await rig.post(headers=headers)
        assert status == 401
    for sent in rig.provider.requests:
        assert sent["authorization"] == "Bearer real"
        assert not sent.keys() & set(names)


async def test_the_answer_passes_when_metering_leaves_at_once(rig: Rig) -> None:
    rig.server.meters = False
    status, text, _ = await rig.post(b'{"stream": 1}')
    assert (status, text) == (200, "data: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert rig.server.metered == ["begun"]


async def test_the_ending_tells_what_admission_and_metering_wrote(rig: Rig) -> None:
    rig.server.metadata = {"rid": "r1"}
    await rig.post(b'{"stream": 1}')
    ending = await rig.ending()
    told = ending["commonProperties"]["metadata"]["filterMetadata"]["llm"]
    assert told == {"rid": "r1", "met": 1}
    request_id = rig.server.attribute("request.id")
    assert ending["request"]["requestHeaders"] == {"x-request-id": request_id}


async def test_the_provider_is_not_asked_to_compress(rig: Rig) -> None:
    await rig.post(headers={**KEY, "accept-encoding": "gzip"})
    assert "accept-encoding" not in rig.provider.requests[0]


async def test_a_client_can_neither_ask_for_retries_nor_choose_its_request_id(rig: Rig) -> None:
    chosen = "11111111-1111-4111-8111-111111111111"
    retries = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "3", "x-request-id": chosen}
    status, _, _ = await rig.post(b"fail", headers={**KEY, **retries})
    assert (status, len(rig.provider.requests)) == (503, 1)
    assert rig.server.attribute("request.id") != chosen


async def test_an_unmetered_path_asks_nobody_and_another_spelling_is_metered(rig: Rig) -> None:
    await rig.post(path="/v1/models/one")
    assert (rig.server.asked, rig.server.metered) == ([], [])
    for path in ("/v1/models-two", "/v1/models/..%2fchat/completions"):
        rig.server.asked.clear()
        await rig.post(path=path)
        assert len(rig.server.asked) == 1, path


async def test_admission_sees_one_spelling_of_a_path(rig: Rig) -> None:
    await rig.post(path="//v1/models/%2e%2e//chat/./completions")
    assert rig.server.attribute("request.path") == "/v1/chat/completions"


async def test_an_upgrade_is_refused(rig: Rig) -> None:
    headers = {**KEY, "connection": "upgrade", "upgrade": "websocket"}
    async with rig.client.get(f"{rig.url}/v1/realtime", headers=headers) as answer:
        assert answer.status == 403
    assert rig.provider.requests == []


async def test_a_body_above_envoys_own_limit_is_admitted_whole(rig: Rig) -> None:
    status, _, _ = await rig.post(b"x" * 2_000_000)
    body = rig.server.asked[0]["requestBody"]["body"]
    assert (status, len(base64.b64decode(body))) == (200, 2_000_000)


@pytest.mark.parametrize(("mode", "expected"), [("closed", 503), ("open", 200)])
async def test_without_a_server_the_failure_mode_decides(
    mode: str, expected: int, tmp_path: Path
) -> None:
    async with running(tmp_path, failure_mode=mode) as rig:
        await rig.grpc_server.stop(0)
        status, _, _ = await rig.post()
        assert status == expected


async def test_the_health_check_of_compose_sees_that_envoy_is_ready(rig: Rig) -> None:
    stack = yaml.safe_load((ROOT / "compose/docker-compose.yaml").read_text("utf-8"))
    program, *arguments = stack["services"]["envoy"]["healthcheck"]["test"][1:]
    for port, expected in ((rig.admin_port, 0), (free_ports(1)[0], 1)):
        found = [word.replace("/19000 ", f"/{port} ") for word in arguments]
        process = await asyncio.create_subprocess_exec(
            program, *found, stderr=asyncio.subprocess.DEVNULL
        )
        assert await asyncio.wait_for(process.wait(), timeout=10) == expected


def _segment(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


async def test_the_payload_of_a_jwt_reaches_admission_as_metadata(tmp_path: Path) -> None:
    """The identity source that docs/envoy.md describes."""
    secret = b"a secret of at least 32 characters"
    key = {"kty": "oct", "alg": "HS256", "k": _segment(secret)}
    jwt_authn = {
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {
                "yours": {
                    "local_jwks": {"inline_string": json.dumps({"keys": [key]})},
                    "payload_in_metadata": "jwt_payload",
                }
            },
            "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "yours"}}],
        },
    }

    def insert(config: dict[str, Any]) -> None:
        (listener,) = config["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"].insert(1, jwt_authn)

    head, payload = _segment(b'{"alg":"HS256"}'), _segment(b'{"sub":"team-a"}')
    digest = hmac.new(secret, f"{head}.{payload}".encode(), hashlib.sha256).digest()
    async with running(tmp_path, change=insert, api_keys=None) as rig:
        token = f"{head}.{payload}.{_segment(digest)}"
        status, _, _ = await rig.post(headers={"authorization": f"Bearer {token}"})
        assert status == 200
        forwarded = rig.server.asked[0]["metadataContext"]["filterMetadata"]
        assert forwarded["envoy.filters.http.jwt_authn"]["jwt_payload"]["sub"] == "team-a"
        status, _, _ = await rig.post(headers={"authorization": f"Bearer {token[:-4]}AAAA"})
        assert status == 401
