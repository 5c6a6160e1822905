"""A provider of many HTTP APIs (``fake_apis``) that answers by script and keeps a journal.

Run it as ``python -m extproc.demo.fake_provider --port N``. Scripts: see ``provider_script``.
The journal (``GET /_fake/journal``, ``DELETE`` empties it) says for each request what was really
produced, which is the truth that the tour and the tests compare the product's books with.
``POST /_fake/gates/NAME`` opens a gate, for good: answers that wait for it are given.
"""

import argparse
import asyncio
import signal
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle

from aiohttp import web

from extproc.demo.fake_answers import Frame
from extproc.demo.fake_apis import APIS
from extproc.demo.fake_apis.api import Api, Call, Job
from extproc.demo.fake_orders import OrderError
from extproc.demo.fake_tokens import vocabulary
from extproc.demo.provider_script import SCRIPT_HEADER, Script, ScriptError, parse_script

_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class JournalEntry:
    """What became of one request.

    ``output_tokens_produced`` counts tokens whose last byte was written to the socket.
    ``ending``: open, finished, client_gone (the peer closed first), broken (we closed by script).
    """

    request_id: str
    path: str
    label: str
    model: str = ""
    input_tokens: int = 0
    output_tokens_produced: int = 0
    status: int = 0
    streamed: bool = False
    usage_sent: bool = False
    ending: str = "open"


class _BrokenError(Exception):
    """The script said to close the connection."""


class FakeProvider:
    """One provider: its routes, its journal, and its listening socket once started."""

    def __init__(self) -> None:
        self.journal: list[JournalEntry] = []
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.port = 0
        self._host = ""
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self._host}:{self.port}"

    async def start(self, port: int, *, host: str = "127.0.0.1") -> None:
        """Listen on ``port``, or on a free one when it is 0. Raises OSError when it is taken."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for api in APIS:
            app.router.add_post(api.pattern, partial(self._answer, api))
        app.router.add_get("/_fake/health", self._health)
        app.router.add_get("/_fake/journal", self._show_journal)
        app.router.add_delete("/_fake/journal", self._reset_journal)
        app.router.add_post("/_fake/gates/{name}", self._open_gate)
        # Cancellation tells a hanging handler at once that its client has left.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2
        )
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
        self._runner = runner
        self._host = host
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the socket and every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _show_journal(self, _request: web.Request) -> web.Response:
        return web.json_response([asdict(entry) for entry in self.journal])

    async def _reset_journal(self, _request: web.Request) -> web.Response:
        self.journal.clear()
        return web.Response(status=204)

    async def _open_gate(self, request: web.Request) -> web.Response:
        self._gates[request.match_info["name"]].set()
        return web.Response(status=204)

    async def _answer(self, api: Api, request: web.Request) -> web.StreamResponse:
        try:
            script = parse_script(request.headers.get(SCRIPT_HEADER))
        except ScriptError as error:
            return _json_response(400, api.error_body(400, f"{SCRIPT_HEADER}: {error}"))
        entry = JournalEntry(
            request_id=request.headers.get("x-request-id", ""),
            path=request.path,
            label=script.label,
        )
        self.journal.append(entry)
        number = len(self.journal)
        try:
            response = await self._answer_by_script(request, api, script, entry, number)
        except (asyncio.CancelledError, ConnectionError):
            entry.ending = "client_gone"
            raise
        except _BrokenError:
            entry.ending = "broken"
            # The transport is closed already; aiohttp gives up on this answer without a word.
            return web.Response()
        entry.ending = "finished"
        return response

    async def _answer_by_script(
        self, request: web.Request, api: Api, script: Script, entry: JournalEntry, number: int
    ) -> web.StreamResponse:
        raw = await request.read()
        if script.delay_ms:
            await asyncio.sleep(script.delay_ms / 1000)
        if script.gate:
            await self._gates[script.gate].wait()
        if script.reset == "before_headers":
            _reset(request)
            raise _BrokenError
        if script.status >= 400:
            entry.status = script.status
            return _json_response(
                script.status,
                api.error_body(script.status, "The provider fails, as the script says."),
                retry_after=script.retry_after,
                content_type=script.content_type,
                headers=_error_headers(api, script.status),
            )
        try:
            job = api.read(_call(request, raw), script)
        except OrderError as error:
            entry.status = 400
            with_param = api.order_error_body
            body = with_param(error) if with_param else api.error_body(400, str(error))
            return _json_response(400, body, headers=_error_headers(api, 400))
        entry.model = job.model
        entry.input_tokens = job.input_tokens
        entry.streamed = job.stream and api.stream is not None
        entry.status = 200
        return await self._write(request, api, job, script=script, entry=entry, number=number)

    async def _write(
        self,
        request: web.Request,
        api: Api,
        job: Job,
        *,
        script: Script,
        entry: JournalEntry,
        number: int,
    ) -> web.StreamResponse:
        default_type = api.stream_type if entry.streamed else api.plain_type
        headers = {
            "content-type": script.content_type or job.content_type or default_type,
            "x-request-id": f"req_fake{number:08d}",
        }
        response = web.StreamResponse(status=script.status, headers=headers)
        if entry.streamed and api.stream is not None:
            frames = api.stream(job, script, number)
        else:
            whole = api.plain(job, script, number)
            if script.error_event_after is not None:
                whole = Frame(api.error_body(500, "The model is overloaded."))
            if api.plain_headers is not None:
                response.headers.update(api.plain_headers(job, script))
            # A length that is not reached is how a client sees a plain answer break off.
            response.content_length = len(whole.data)
            frames = iter([whole])
        await response.prepare(request)
        pause = script.chunk_delay_ms / 1000
        counted = 0
        await _interrupt(request, script, counted)
        for index, piece in enumerate(_pieces(frames, script.chunk)):
            if index and pause:
                await asyncio.sleep(pause)
            await response.write(piece.data)
            entry.output_tokens_produced += piece.tokens
            entry.usage_sent = entry.usage_sent or piece.has_usage
            if piece.tokens or not entry.streamed:
                counted += 1
                await _interrupt(request, script, counted)
            if entry.streamed and api.error_frame and script.error_event_after == counted:
                await response.write(api.error_frame().data)
                break
        if script.error_event_after is not None and not entry.output_tokens_produced:
            entry.input_tokens = 0  # nobody bills an answer that is only an error
        await response.write_eof()
        return response


def _call(request: web.Request, body: bytes) -> Call:
    return Call(
        path=request.rel_url.raw_path,
        match=request.match_info,
        query=request.query,
        content_type=request.headers.get("content-type", ""),
        body=body,
    )


async def _interrupt(request: web.Request, script: Script, counted: int) -> None:
    """Hang or break off after ``counted`` chunks, when the script says so."""
    if script.hang_after == counted:
        await asyncio.Event().wait()  # for ever: cancelled when the client goes
    if script.break_after == counted:
        await asyncio.sleep(script.chunk_delay_ms / 1000)
        # close() still flushes what was written; the missing end is what breaks the answer.
        if request.transport is not None:
            request.transport.close()
        raise _BrokenError


def _error_headers(api: Api, status: int) -> Mapping[str, str]:
    return api.error_headers(status) if api.error_headers else {}


def _json_response(
    status: int,
    body: bytes,
    *,
    retry_after: int | None = None,
    content_type: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    headers = {"content-type": content_type or "application/json", **(headers or {})}
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return web.Response(status=status, body=body, headers=headers)


def _reset(request: web.Request) -> None:
    """Close with a TCP reset instead of a clean end."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _pieces(frames: Iterator[Frame], sizes: tuple[int, ...]) -> Iterator[Frame]:
    """The same bytes cut at ``sizes`` in turn. A frame's tokens go with the piece that ends it."""
    if not sizes:
        yield from frames
        return
    next_size = cycle(sizes)
    room = next(next_size)
    data, tokens, has_usage = b"", 0, False
    for frame in frames:
        rest = frame.data
        while rest:
            part, rest = rest[:room], rest[room:]
            data += part
            room -= len(part)
            if not rest:
                tokens += frame.tokens
                has_usage = has_usage or frame.has_usage
            if room == 0:
                yield Frame(data, tokens, has_usage)
                data, tokens, has_usage = b"", 0, False
                room = next(next_size)
    if data:
        yield Frame(data, tokens, has_usage)


async def start_fake_provider(port: int = 0, *, host: str = "127.0.0.1") -> FakeProvider:
    """Start a provider in this event loop; 0 takes a free port. Raises OSError when taken."""
    provider = FakeProvider()
    await provider.start(port, host=host)
    return provider


def serve_forever(*, host: str, port: int) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit status. Raises OSError when taken."""
    # The vocabularies take half a second each; a first request should not wait for them.
    for name in ("o200k_base", "cl100k_base"):
        vocabulary(name)

    async def serve() -> None:
        provider = await start_fake_provider(port, host=host)
        print(f"fake provider: {provider.url}", flush=True)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        await stopped.wait()
        await provider.stop()

    asyncio.run(serve())
    return 0


def main() -> int:
    """Entry point of ``python -m extproc.demo.fake_provider``."""
    parser = argparse.ArgumentParser(prog="python -m extproc.demo.fake_provider")
    parser.add_argument("--port", type=int, default=18080, help="TCP port (0: a free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    args = parser.parse_args()
    return serve_forever(host=args.host, port=args.port)


if __name__ == "__main__":
    raise SystemExit(main())
