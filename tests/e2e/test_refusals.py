"""Whose answer is it: what README.md says about errors that look alike, asked of the real Envoy."""

import http.client
import os
import signal
import time

from extproc.demo.stack import Stack, demo_key, http_get
from tests.support.client import CHAT, StackClient

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
