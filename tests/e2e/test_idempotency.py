"""A client's idempotency key through a real Envoy, as the official SDKs send it."""

import json
import threading
from collections.abc import Iterator

import openai
import pytest
import redis

from extproc.demo.stack import Stack
from tests.support.client import CHAT, StackClient, eventually

HEADER = "idempotency-key"
ANTHROPIC = {**CHAT, "model": "claude-opus-4-8", "max_tokens": 20}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(
        services=tuple(f"i{number}" for number in range(5)),
        serve_env={"TOKENWEIR_ADMISSION__IDEMPOTENCY_HEADER": HEADER},
        envoy_options={"idempotency_header": HEADER},
    ) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack, request: pytest.FixtureRequest) -> Iterator[StackClient]:
    number = _numbers.setdefault(request.node.name, len(_numbers))
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        client = StackClient(stack, f"i{number}", connection)
        client.limit()
        yield client
        client.close()


_numbers: dict[str, int] = {}


def key(value: str) -> dict[str, str]:
    return {HEADER: value}


def test_a_second_request_with_the_key_of_one_under_way_is_409(client: StackClient) -> None:
    slow = threading.Thread(
        target=lambda: client.post(fake="output=5;delay_ms=1500", headers=key("k-1"))
    )
    slow.start()
    eventually(client.pending)
    second = client.post(headers=key("k-1"))
    assert second.status == 409
    assert second.json["error"]["code"] == "idempotency_key_in_flight"
    assert second.json["error"]["param"] == HEADER
    assert second.headers["retry-after"] == "1"
    claude = client.post(ANTHROPIC, path="/v1/messages", headers=key("k-1"))
    # The same key, but another request.
    assert (claude.status, claude.json["error"]["type"]) == (422, "invalid_request_error")
    assert client.post(headers=key("k-2")).status == 200
    slow.join()
    client.settled(2)
    assert client.counted("rpm") == 2
    assert client.post(headers=key("k-1")).status == 200
    again = [record for record in client.settled(3) if "before" in record]
    assert len(again) == 1


def test_the_official_client_comes_through_after_its_first_attempt_has_ended(
    client: StackClient,
) -> None:
    """It retries 409 by itself, with the same key."""
    sdk = client.openai.with_options(max_retries=4)

    def ask(script: str) -> openai.types.chat.ChatCompletion:
        answer: openai.types.chat.ChatCompletion = sdk.chat.completions.create(
            **CHAT, extra_headers={**key("sdk"), "x-fake": script}
        )
        return answer

    slow = threading.Thread(target=lambda: ask("output=5;delay_ms=700"))
    slow.start()
    eventually(client.pending)
    assert ask("output=3").usage is not None
    slow.join()
    assert len(client.settled(2)) == 2


def test_another_request_with_a_used_key_is_422_for_the_official_client(
    client: StackClient,
) -> None:
    assert client.post(headers=key("once")).status == 200
    client.settled(1)
    other = {**CHAT, "messages": [{"role": "user", "content": "Something else"}]}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.openai.chat.completions.create(**other, extra_headers=key("once"))
    assert caught.value.code == "idempotency_key_reused"
    assert client.counted("rpm") == 1


def test_a_malformed_key_is_400_and_never_shown(client: StackClient) -> None:
    for bad in ("two words", "x" * 256, "k1,k1"):
        answer = client.post(headers=key(bad))
        assert answer.status == 400
        assert answer.json["error"]["code"] == "invalid_idempotency_key"
        assert bad not in json.dumps(answer.json)
    assert client.post(headers=key("")).status == 200


def test_a_key_is_in_no_log_and_no_key_of_redis(client: StackClient) -> None:
    secret = "sk-client-put-a-secret-here"
    assert client.post(headers=key(secret)).status == 200
    client.settled(1)
    assert not [name for name in client.redis.scan_iter() if secret in name]
    assert secret not in (client.stack.run_dir / "serve.log").read_text()
