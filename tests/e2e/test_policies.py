"""Policies through a real Envoy: all that apply decide in one step, and what was taken is settled
wherever it was taken."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from extproc.demo.stack import Stack
from tests.support.client import CHAT, StackClient, eventually

STREAM = {**CHAT, "stream": True}
_SCOPES = {
    "user": [{"kind": "header", "name": "x-user"}],
    "agent": [{"kind": "header", "name": "x-agent"}],
}
# The bodies' limits are bounded by the clients' own caps, so that what is reserved is known.
CAPPED = {**CHAT, "max_tokens": 20}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    run_dir = tmp_path_factory.mktemp("policies")
    with Stack(
        run_dir=run_dir,
        services=tuple(f"t{number}" for number in range(20)),
        serve_env={
            "TOKENWEIR_IDENTITY__SCOPES": json.dumps(_SCOPES),
            "TOKENWEIR_PRICES": json.dumps(
                [{"model": "gpt-4o*", "input_micros": 1_000_000, "output_micros": 10_000_000}]
            ),
        },
        envoy_options={"front_headers": ("x-user", "x-agent")},
    ) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack, request: pytest.FixtureRequest) -> Iterator[StackClient]:
    number = _numbers.setdefault(request.node.name, len(_numbers))
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        client = StackClient(stack, f"t{number}", connection)
        yield client
        client.close()


_numbers: dict[str, int] = {}


def apply(client: StackClient, policies: list[dict[str, Any]], *, root: bool = True) -> None:
    """`tokenweir limits apply` of these policies, for the client's root or for all."""
    file = Path(client.stack.run_dir) / f"{client.service}-{root}.yaml"
    document: dict[str, Any] = {"policies": policies}
    if root:
        # A policy's name is its own among all roots.
        named = [{**one, "name": f"{client.service}-{one['name']}"} for one in policies]
        document = {"root": client.service, "policies": named}
    file.write_text(json.dumps(document))  # JSON is YAML
    client.stack.cli("limits", "apply", "-f", str(file))


def each_user(dimension: str, limit: int, **more: Any) -> dict[str, Any]:
    rule = {"dimension": dimension, "limit": limit}
    return {
        "name": f"{dimension.replace('_', '-')}-user",
        "scope": "user",
        "value": "*each",
        "rules": [rule],
        **more,
    }


def as_user(name: str) -> dict[str, str]:
    return {"x-user": name}


def test_each_user_has_a_limit_of_its_own(client: StackClient) -> None:
    apply(client, [each_user("rpm", 1)])
    assert client.post(headers=as_user("alice")).status == 200
    refused = client.post(headers=as_user("alice"))
    assert refused.status == 429
    assert refused.json["error"]["type"] == "requests"
    assert "rpm-user/rpm" in refused.json["error"]["message"]
    assert client.post(headers=as_user("bob")).status == 200


def test_a_service_limit_is_one_policy_more_and_the_strictest_decides(client: StackClient) -> None:
    client.limit(rpm=2, tpm=1_000_000)
    apply(client, [each_user("rpm", 100)])
    answers = [client.post(headers=as_user("alice")) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    assert "service_limit/rpm" in answers[2].json["error"]["message"]


def test_a_refusal_by_one_limit_takes_nothing_from_the_others(client: StackClient) -> None:
    apply(client, [each_user("rpm", 100), each_user("total_tpm", 60)])
    assert client.post(CAPPED, headers=as_user("alice"), fake="output=20").status == 200
    client.settled(1)
    for _ in range(5):
        big = {**CAPPED, "messages": [{"role": "user", "content": "word " * 20}]}
        assert client.post(big, headers=as_user("alice")).status == 429
    used = [
        int(client.redis.get(name) or 0)
        for name in client.redis.scan_iter(f"rate:{{{client.service}}}:*rpm*", count=1000)
    ]
    assert used == [1]


def test_new_policies_hold_for_the_very_next_request(client: StackClient) -> None:
    apply(client, [each_user("rpm", 1)])
    assert client.post(headers=as_user("a")).status == 200
    assert client.post(headers=as_user("a")).status == 429
    apply(client, [each_user("rpm", 2)])
    assert client.post(headers=as_user("a")).status == 200
    assert client.post(headers=as_user("a")).status == 429


def test_money_is_a_dimension(client: StackClient) -> None:
    # 9 input tokens at 1 and 20 output tokens at 10 micro-USD a token: 209.
    apply(client, [each_user("cost_micros_per_month", 300)])
    assert client.post(CAPPED, headers=as_user("a"), fake="output=20").status == 200
    (record,) = client.settled(1)
    refused = client.post(CAPPED, headers=as_user("a"))
    assert refused.status == 429
    assert refused.json["error"]["code"] == "insufficient_quota"
    assert refused.headers["x-should-retry"] == "false"
    assert record["state"] == "SETTLED"
    (name,) = client.redis.scan_iter(f"quota:{{{client.service}}}:*", count=1000)
    assert client.redis.hgetall(name)["used"] == "209"


def test_a_concurrency_slot_is_held_as_long_as_the_stream(client: StackClient) -> None:
    apply(client, [each_user("concurrent", 1)])
    connection = client.connection()
    fake = client.headers("output=200;hang_after=2", x_user="a")
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), fake)
    response: http.client.HTTPResponse = connection.getresponse()
    response.readline()
    assert client.post(headers=as_user("a")).status == 429
    connection.close()
    eventually(lambda: client.post(headers=as_user("a")).status == 200)


def test_a_shadow_limit_refuses_nobody_and_is_counted(client: StackClient) -> None:
    apply(client, [each_user("rpm", 1, mode="shadow")])
    assert [client.post(headers=as_user("a")).status for _ in range(3)] == [200, 200, 200]
    counted = client.metric("tokenweir_shadow_refusals_total", service_id=client.service)
    assert counted == 2


def test_a_soft_limit_records_the_overage(client: StackClient) -> None:
    apply(client, [each_user("tokens_per_month", 10, on_exceed="record")])
    for _ in range(2):
        assert client.post(CAPPED, headers=as_user("a"), fake="output=20").status == 200
    client.settled(2)
    (name,) = client.redis.scan_iter(f"quota:{{{client.service}}}:*", count=1000)
    assert client.redis.hgetall(name)["used"] == str(2 * 29)


def test_a_block_refuses_until_it_is_lifted(client: StackClient) -> None:
    apply(client, [each_user("rpm", 100)])
    assert client.post(headers=as_user("mallory")).status == 200
    arguments = ("user", "mallory", "--root", client.service)
    client.stack.cli("limits", "block", *arguments)
    refused = client.post(headers=as_user("mallory"))
    assert refused.status == 429
    assert refused.json["error"]["code"] == "insufficient_quota"
    assert client.post(headers=as_user("alice")).status == 200
    client.stack.cli("limits", "unblock", *arguments)
    assert client.post(headers=as_user("mallory")).status == 200


def test_a_ceiling_across_services_is_shared_and_undone_and_settled(client: StackClient) -> None:
    """A provider's ceiling lives in another slot: a refusal there gives back what the own root
    took, requests too, and a settlement reaches both."""
    other = StackClient(client.stack, f"{client.service[0]}19", client.redis)
    for one in (client, other):
        apply(one, [each_user("rpm", 100)])
    ceiling = {
        "name": "openai-tpm",
        "scope": "provider",
        "value": "openai",
        "across_roots": True,
        "rules": [{"dimension": "total_tpm", "limit": 60}],
    }
    apply(client, [ceiling], root=False)
    try:
        assert client.post(CAPPED, headers=as_user("a"), fake="output=20").status == 200
        client.settled(1)
        root = "across:provider:openai"
        eventually(lambda: client.redis.zcard(f"pending:{{{root}}}") == 0)
        shared = [
            int(client.redis.get(name) or 0)
            for name in client.redis.scan_iter(f"rate:{{{root}}}:*", count=1000)
        ]
        assert shared == [29]
        big = {**CAPPED, "messages": [{"role": "user", "content": "word " * 20}]}
        refused = other.post(big, headers=as_user("b"))
        assert refused.status == 429
        assert "openai-tpm/total_tpm" in refused.json["error"]["message"]
        eventually(lambda: not other.pending())
        used = [
            int(client.redis.get(name) or 0)
            for name in client.redis.scan_iter(f"rate:{{{other.service}}}:*rpm*", count=1000)
        ]
        assert sum(used) == 0
    finally:
        apply(client, [], root=False)


def test_a_model_without_a_price_is_never_free(client: StackClient) -> None:
    apply(client, [each_user("cost_micros_per_day", 1_000_000)])
    user = as_user("alice")
    assert client.post(CAPPED, headers=user).status == 200
    refused = client.post({**CAPPED, "model": "mystery-1"}, headers=user)
    assert refused.status == 403
    assert refused.json["error"]["code"] == "unpriced_model"
    assert "cost_micros_per_day" in refused.json["error"]["message"]
    # Who meets no limit of cost needs no price.
    assert client.post({**CAPPED, "model": "mystery-1"}).status == 200
