"""Whose answer is it: what README.md says about errors that look alike, asked of the real Envoy."""

import http.client
import os
import signal
import time

from extproc.demo.stack import Stack, demo_key, http_get
from tests.support.client import CHAT, StackClient, eventually

PROVIDERS_OWN = "x-envoy-upstream-service-time"
ADMISSION = "http.llm.ext_proc.tokenweir_admission"


def test_our_429_and_400_are_told_from_the_providers(client: StackClient) -> None:
    client.limit(rpm=2)
    theirs = [client.post(fake=f"status={status}") for status in (429, 400)]
    assert [answer.status for answer in theirs] == [429, 400]
    assert all(PROVIDERS_OWN in answer.headers for answer in theirs)
    ours = [client.post(), client.post(b"{")]
    assert [answer.status for answer in ours] == [429, 400]
    assert not any(PROVIDERS_OWN in answer.headers for answer in ours)
    for path in ("/v1/chat/completions", "/v1/messages"):
        error = client.post({**CHAT, "max_tokens": 9}, path=path).json["error"]
        assert f"for service {client.service} " in error["message"]
        assert ("code" in error) is (path == "/v1/chat/completions")


def test_the_providers_429_is_counted_as_its_own_and_told_with_its_advice(
    client: StackClient,
) -> None:
    client.limit(rpm=1)

    def counted() -> float:
        labels = {"provider": "anthropic", "code": "rate_limited"}
        return client.metric("tokenweir_provider_errors_total", **labels)

    before = counted()
    body = {**CHAT, "max_tokens": 9}
    theirs = client.post(body, path="/v1/messages", fake="status=429;retry_after=7")
    ours = client.post(body, path="/v1/messages")
    assert [theirs.status, ours.status] == [429, 429]
    assert theirs.headers["retry-after"] == "7"
    assert theirs.json["type"] == "error"
    eventually(lambda: counted() > before)
    assert counted() == before + 1
    (record,) = client.settled(1)
    assert (record["state"], record["charged"]) == ("RELEASED", "0")


def test_usage_is_shown_by_kind(client: StackClient) -> None:
    client.limit()

    def counted(kind: str) -> float:
        labels = {"wire_format": "openai_chat", "kind": kind}
        return client.metric("tokenweir_usage_tokens_total", **labels)

    before = counted("cached_input")
    assert client.post(fake="cached=3").status == 200
    (record,) = client.settled(1)
    assert record["parts"] == "cached_input 3"
    eventually(lambda: counted("cached_input") == before + 3)


def test_envoys_own_refusals_are_plain_text(client: StackClient) -> None:
    client.limit()
    large = client.post(b" " * 17_000_000)
    assert (large.status, large.body) == (413, b"Payload Too Large")
    stranger = client.post(headers={"authorization": "Bearer nobody"})
    assert (stranger.status, stranger.body) == (401, b"Client authentication failed.")


def statistics(stack: Stack) -> dict[str, int]:
    lines = http_get(f"{stack.admin_url}/stats")[1].splitlines()
    pairs = [line.rpartition(": ") for line in lines if line.startswith(ADMISSION)]
    return {name.removeprefix(f"{ADMISSION}."): int(value) for name, _, value in pairs}


def ask(stack: Stack) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=20)
    headers = {"authorization": f"Bearer {demo_key('svc-chat')}"}
    try:
        connection.request("POST", "/v1/chat/completions", b"{}", headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_server_that_hangs_and_one_that_is_away_show_in_envoys_statistics() -> None:
    with Stack(with_work=False) as stack:
        assert statistics(stack)["message_timeouts"] == 0
        server = stack.child("serve").pid
        assert server is not None
        os.kill(server, signal.SIGSTOP)
        started = time.monotonic()
        try:
            assert ask(stack) == (504, b"")
        finally:
            os.kill(server, signal.SIGCONT)
        # Admission's second, and two more because the 504 passes metering.
        assert 2.5 < time.monotonic() - started < 10
        assert statistics(stack)["message_timeouts"] == 1
        stack.stop_one("serve")
        failed = statistics(stack)["streams_failed"]
        assert ask(stack) == (503, b"")
        assert statistics(stack)["streams_failed"] == failed + 1
