"""A provider that answers with recorded bytes, by the request's header ``x-case``."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.unit.provider_cases import AnswerCase, answer_cases

CASE_HEADER = "x-case"


@dataclass
class RecordedProvider:
    """``received`` are bodies as they came, by case, with their content encoding. ``hangs`` names
    cases whose answers never end."""

    url: str = ""
    cases: dict[str, AnswerCase] = field(
        default_factory=lambda: {case.name: case for case in answer_cases()}
    )
    received: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        name = request.headers.get(CASE_HEADER, "")
        self.received[name] = body, request.headers.get("content-encoding", "")
        case = self.cases[name]
        headers = {"x-provider": "recorded"}
        if case.content_type is not None:
            headers["content-type"] = case.content_type
        if case.content_encoding is not None:
            headers["content-encoding"] = case.content_encoding
        response = web.StreamResponse(status=case.status, headers=headers)
        await response.prepare(request)
        for chunk in case.chunks:
            await response.write(chunk)
        if name in self.hangs:
            await asyncio.Event().wait()  # cancelled when the client goes
        await response.write_eof()
        return response


@contextmanager
def recorded_provider() -> Iterator[RecordedProvider]:
    """Listens on a free port of the loopback, in a thread of its own."""
    provider = RecordedProvider()
    loop = asyncio.new_event_loop()
    # aiohttp inflates bodies that say they are packed; the test wants them as they are.
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(
        app,
        auto_decompress=False,
        access_log=None,
        shutdown_timeout=0.2,
        handler_cancellation=True,
    )

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

    loop.run_until_complete(start())
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield provider
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
