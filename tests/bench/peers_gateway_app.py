"""A pure-Python gateway as a team writes it in an afternoon: Starlette, httpx, limits on Redis.

It runs in an environment of its own and imports nothing of this project. Per client and minute it
counts requests before the call, and tokens after it, by the usage that the provider reports; a
client whose tokens are used up is refused. Answers pass through as they come.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from limits import RateLimitItem, RateLimitItemPerMinute  # type: ignore[import-not-found]
from limits.aio.storage import RedisStorage  # type: ignore[import-not-found]
from limits.aio.strategies import FixedWindowRateLimiter  # type: ignore[import-not-found]
from starlette.applications import Starlette  # type: ignore[import-not-found]
from starlette.requests import Request  # type: ignore[import-not-found]
from starlette.responses import (  # type: ignore[import-not-found]
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route  # type: ignore[import-not-found]

CONFIG_VARIABLE = "GATEWAY_CONFIG"
_DROPPED = {"connection", "content-length", "transfer-encoding", "keep-alive"}
_TIMEOUT_SECONDS = 60.0


class Gateway:
    """The state of one process. ``config``: redis_url, models (name to URL), clients (key to rpm
    and tpm)."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._models: dict[str, str] = config["models"]
        self._limits: dict[str, tuple[RateLimitItem, RateLimitItem]] = {
            key: (RateLimitItemPerMinute(client["rpm"]), RateLimitItemPerMinute(client["tpm"]))
            for key, client in config["clients"].items()
        }
        storage = RedisStorage(f"async+{config['redis_url']}", implementation="redispy")
        self._limiter = FixedWindowRateLimiter(storage)
        self._client = httpx.AsyncClient(
            timeout=_TIMEOUT_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Close the provider's connections when the server stops."""
        yield
        await self._client.aclose()

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key not in self._limits:
            return JSONResponse({"error": {"message": "unknown key"}}, 401)
        body = await request.body()
        order = json.loads(body)
        url = self._models.get(order.get("model"))
        if url is None:
            return JSONResponse({"error": {"message": "unknown model"}}, 404)
        requests, tokens = self._limits[key]
        if not await self._limiter.test(tokens, "tokens", key) or not await self._limiter.hit(
            requests, "requests", key
        ):
            return JSONResponse({"error": {"message": "rate limit exceeded"}}, 429)
        headers = {"content-type": "application/json", "authorization": "Bearer sk-upstream"}
        outgoing = self._client.build_request("POST", url, content=body, headers=headers)
        answer = await self._client.send(outgoing, stream=True)
        kept = {name: text for name, text in answer.headers.items() if name not in _DROPPED}
        if order.get("stream"):
            return StreamingResponse(self._relay(answer, tokens, key), answer.status_code, kept)
        whole = await answer.aread()
        await self._charge(whole, tokens, key)
        return Response(whole, answer.status_code, kept)

    async def _relay(
        self, answer: httpx.Response, tokens: RateLimitItem, key: str
    ) -> AsyncIterator[bytes]:
        """Chunks as they come; usage is in the last event before ``[DONE]``."""
        tail = b""
        try:
            async for chunk in answer.aiter_raw():
                tail = (tail + chunk)[-4096:]
                yield chunk
        finally:
            await answer.aclose()
        events = [line[6:] for line in tail.split(b"\n") if line.startswith(b"data: {")]
        if events:
            await self._charge(events[-1], tokens, key)

    async def _charge(self, document: bytes, tokens: RateLimitItem, key: str) -> None:
        usage = json.loads(document).get("usage") or {}
        if total := usage.get("total_tokens"):
            await self._limiter.hit(tokens, "tokens", key, cost=total)


async def health(_request: Request) -> Response:
    """``GET /health``."""
    return PlainTextResponse("ok")


def create() -> Starlette:
    """The application, configured by JSON in the environment."""
    gateway = Gateway(json.loads(os.environ[CONFIG_VARIABLE]))
    routes = [
        Route("/v1/chat/completions", gateway.chat, methods=["POST"]),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=gateway.lifespan)
