"""Nothing passes uncounted: what admission never saw shows in one metric, by reason."""

import http.client

import redis

from extproc.demo.stack import Stack, demo_key
from tests.support.client import StackClient, eventually

METRIC = "tokenweir_unmetered_total"
SERVICE = "svc-chat"


def get(stack: Stack, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=20)
    try:
        key = {"authorization": f"Bearer {demo_key(SERVICE)}"}
        connection.request("GET", path, headers=key | headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_what_admission_never_saw_is_counted_once_by_its_reason() -> None:
    with (
        Stack(
            with_work=False,
            envoy_options={"unmetered_prefixes": ("/_fake/gates/open",)},
            serve_env={"TOKENWEIR_ADMISSION__UNMETERED": "allow"},
        ) as stack,
        redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection,
    ):
        client = StackClient(stack, SERVICE, connection)
        client.limit()
        # An entry of the access log may be lost while Envoy's stream for them is being opened.
        assert client.post().status == 200
        eventually(lambda: client.metric("tokenweir_endings_total", outcome="metered") >= 1)
        assert get(stack, "/_fake/health") == 200
        assert client.post(path="/_fake/gates/open").status == 204
        assert get(stack, "/v1/realtime", connection="upgrade", upgrade="websocket") == 403
        # Seen by admission, which counts it itself, and only it.
        assert client.post(path="/_fake/gates/other").status == 204
        assert len(client.settled(1)) == 1

        def counted() -> dict[tuple[str, str], int]:
            return {
                (reason, action): int(client.metric(METRIC, reason=reason, action=action))
                for reason in ("no_body", "not_asked", "upgrade", "not_routed", "unknown_path")
                for action in ("allowed", "refused")
                if client.metric(METRIC, reason=reason, action=action)
            }

        expected = {
            ("no_body", "allowed"): 1,
            ("not_asked", "allowed"): 1,
            ("upgrade", "refused"): 1,
            ("unknown_path", "allowed"): 1,
        }
        eventually(lambda: len(counted()) >= len(expected))
        eventually(lambda: client.metric("tokenweir_endings_total", outcome="metered") >= 1)
        assert counted() == expected
