"""Whose answer is it: what README.md says about errors that look alike, asked of real Envoys."""

from tests.support.client import CHAT, StackClient, eventually
from tests.support.targets import settled

PROVIDERS_OWN = "x-envoy-upstream-service-time"


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
    (record,) = settled(client)
    assert (record["state"], record["charged"]) == ("RELEASED", "0")


def test_usage_is_shown_by_kind(client: StackClient) -> None:
    client.limit()

    def counted(kind: str) -> float:
        labels = {"wire_format": "openai_chat", "kind": kind}
        return client.metric("tokenweir_usage_tokens_total", **labels)

    before = counted("cached_input")
    assert client.post(fake="cached=3").status == 200
    (record,) = settled(client)
    assert record["parts"] == "cached_input 3"
    eventually(lambda: counted("cached_input") == before + 3)


def test_envoys_own_refusals_are_plain_text(client: StackClient) -> None:
    client.limit()
    large = client.post(b" " * 17_000_000)
    assert (large.status, large.body) == (413, b"Payload Too Large")
    stranger = client.post(headers={"authorization": "Bearer nobody"})
    assert (stranger.status, stranger.body) == (401, b"Client authentication failed.")
