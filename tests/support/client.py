"""What end-to-end tests ask of a stack: SDK clients, raw requests, and a look into Redis."""

import http.client
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import anthropic
import openai
import redis

from extproc.demo.stack import Stack, demo_key
from tests.support.limits import write_limits

T = TypeVar("T")

CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Say hi"}]}
DEADLINE_SECONDS = 15.0
_POLL_SECONDS = 0.02


def eventually(
    look: Callable[[], T],
    *,
    seconds: float = DEADLINE_SECONDS,
    otherwise: Callable[[], str] = lambda: "",
) -> T:
    """The first truthy value that ``look`` returns; AssertionError, with what ``otherwise`` says,
    when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {otherwise() or look}"
        time.sleep(_POLL_SECONDS)


def early_in_minute(connection: "redis.Redis", *, left_seconds: int = 3) -> None:
    """Wait until the minute of Redis' clock, which is that of the windows, has so much left: what
    fills a window does not run over its end."""
    eventually(lambda: connection.time()[0] % 60 < 60 - left_seconds)


@dataclass(frozen=True)
class Answer:
    """A raw HTTP answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class StackClient:
    """One service's view of a stack. Redis is looked at with a plain client."""

    stack: Stack
    service: str
    redis: "redis.Redis"

    def limit(self, *, rpm: int = 1000, tpm: int = 1_000_000, enabled: bool = True) -> None:
        write_limits(self.stack, self.service, rpm=rpm, tpm=tpm, enabled=enabled)

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.stack.base_url}/v1", api_key=demo_key(self.service), max_retries=0
        )

    @cached_property
    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=self.stack.base_url, api_key=demo_key(self.service), max_retries=0
        )

    def close(self) -> None:
        """Close the SDK clients that were used."""
        for name in ("openai", "anthropic"):
            if name in self.__dict__:
                self.__dict__[name].close()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.stack.envoy_port, timeout=20)

    def headers(self, fake: str = "", **more: str) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return {
            "authorization": f"Bearer {demo_key(self.service)}",
            "content-type": "application/json",
            "x-fake": fake,
            **named,
        }

    def post(
        self,
        body: object = CHAT,
        *,
        path: str = "/v1/chat/completions",
        fake: str = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One raw request on a connection of its own."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connection()
        try:
            connection.request("POST", path, data, self.headers(fake) | (headers or {}))
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())
        finally:
            connection.close()

    def records(self) -> list[dict[str, str]]:
        """The reservations of this service."""
        names = self.redis.scan_iter(f"resv:{{{self.service}}}:*", count=1000)
        found: list[Any] = [self.redis.hgetall(name) for name in names]
        return found

    def pending(self) -> int:
        return int(self.redis.zcard(f"pending:{{{self.service}}}"))

    def counted(self, kind: str) -> int:
        """Sum of the minute windows of ``kind`` (rpm or tpm)."""
        names = list(self.redis.scan_iter(f"rate:{kind}:{{{self.service}}}:*", count=1000))
        return sum(int(value or 0) for value in self.redis.mget(names)) if names else 0

    def settled(self, count: int) -> list[dict[str, str]]:
        """Wait until ``count`` reservations have ended and none is open; their records."""

        def look() -> list[dict[str, str]]:
            records = self.records()
            ended = [record for record in records if record["state"] != "RESERVED"]
            return records if len(ended) == len(records) >= count and not self.pending() else []

        return eventually(look)

    def journal(self, label: str) -> list[dict[str, Any]]:
        """What the provider did for requests with ``label=...`` in their script."""
        with urllib.request.urlopen(f"{self.stack.provider_url}/_fake/journal") as response:
            entries: list[dict[str, Any]] = json.load(response)
        return [entry for entry in entries if entry["label"] == label]

    def upstream_active(self) -> int:
        """How many requests Envoy has sent to the provider that are not answered yet."""
        stat = "cluster.llm_upstream.upstream_rq_active"
        url = f"{self.stack.admin_url}/stats?filter=^{stat}$"
        with urllib.request.urlopen(url) as response:
            return int(response.read().decode().partition(": ")[2])

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry ``labels``."""
        with urllib.request.urlopen(self.stack.metrics_url) as response:
            text = response.read().decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(part in series for part in wanted):
                total += float(value)
        return total
