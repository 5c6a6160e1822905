"""The scripted tour: the official clients, through Envoy, with every way a request can end.

Its last line sums up, and its exit status says whether the books balance.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import openai

from extproc.core.reservations import Outcome
from extproc.demo.books import Books, Record, Totals, chargeable_tokens
from extproc.demo.fake_provider import JournalEntry
from extproc.demo.processes import ChildError, check_port, stop_on_signals
from extproc.demo.stack import Stack, demo_key
from extproc.demo.table import Row, header, line

CHAT, RPM, TPM, CHANGED = "demo-chat", "demo-rpm", "demo-tpm", "demo-changed"
UNKNOWN = "demo-unknown"
_LIMITS = {CHAT: (1_000, 100_000), RPM: (2, 100_000), TPM: (100, 300), CHANGED: (1, 100_000)}
_SERVICES = (*_LIMITS, UNKNOWN)
_GPT, _CLAUDE, _EMBED = "gpt-4o", "claude-opus-4-8", "text-embedding-3-small"
_MESSAGES: Any = [{"role": "user", "content": "Tell me about the river and the old stone towers."}]

_SETTLE_SECONDS = 10.0
_BALANCE_SECONDS = 3.0
_POLL_SECONDS = 0.02
# Steps that need one and the same minute take less than this.
_MINUTE_ROOM_SECONDS = 10.0

Send = Callable[[dict[str, str]], Awaitable[str]]


class Tour:
    """The steps, and what they came to. ``requests`` and ``refused`` count what the clients saw;
    ``over_tokens`` is Envoy's id of the request that the limit of tokens refused."""

    def __init__(self, stack: Stack, books: Books) -> None:
        self.rows: list[Row] = []
        self.refused = 0
        self.over_tokens = ""
        self._stack = stack
        self._books = books
        self._clients = AsyncExitStack()
        self._openai: dict[str, openai.AsyncOpenAI] = {}
        self._claude: anthropic.AsyncAnthropic

    @property
    def requests(self) -> int:
        """Requests sent."""
        return len(self.rows)

    async def run(self) -> Totals:
        """Take every step, then add up."""
        async with self._clients:
            await self._open_clients()
            await self._formats()
            await self._over_requests()
            await self._over_tokens()
            await self._failures()
            await self._without_usage()
            await self._client_leaves()
            await self._limits_change()
            await self._strangers()
            return await self._balanced()

    async def _open_clients(self) -> None:
        for service in (*_SERVICES, "nobody"):
            # Loopback only: a proxy of the environment has no business here.
            http = openai.DefaultAsyncHttpxClient(trust_env=False)
            client = openai.AsyncOpenAI(
                base_url=f"{self._stack.base_url}/v1",
                api_key=demo_key(service),
                max_retries=0,
                timeout=20,
                http_client=http,
            )
            self._openai[service] = await self._clients.enter_async_context(client)
        self._claude = await self._clients.enter_async_context(
            anthropic.AsyncAnthropic(
                base_url=self._stack.base_url,
                api_key=demo_key(CHAT),
                max_retries=0,
                timeout=20,
                http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
            )
        )

    # Steps, in the order of the table.

    async def _formats(self) -> None:
        chat = self._openai[CHAT]

        async def embed(headers: dict[str, str]) -> str:
            texts = ["the quiet river", "the stone tower"]
            await chat.embeddings.create(model=_EMBED, input=texts, extra_headers=headers)
            return "200"

        async def complete(headers: dict[str, str]) -> str:
            await chat.completions.create(
                model=_GPT, prompt="The river", max_tokens=20, extra_headers=headers
            )
            return "200"

        await self._step("chat", CHAT, "output=30", self._chat(CHAT))
        await self._step("chat, two choices, capped", CHAT, "output=30", self._chat(CHAT, n=2))
        await self._step("chat streamed, usage asked", CHAT, "output=40", self._stream(asks=True))
        await self._step("chat streamed, not asked", CHAT, "output=40", self._stream(asks=False))
        await self._step("completion", CHAT, "output=50", complete)
        await self._step("embeddings", CHAT, "", embed)
        await self._step("Anthropic message", CHAT, "output=25", self._message)
        await self._step("Anthropic message streamed", CHAT, "output=35", self._message_stream)

    async def _over_requests(self) -> None:
        await self._room_in_minute()
        for number in (1, 2, 3):
            step = f"request {number} of 2 a minute"
            await self._step(step, RPM, "output=5", self._chat(RPM))

    async def _over_tokens(self) -> None:
        await self._room_in_minute()
        for number in (1, 2):
            step = f"request {number}, 300 tokens a minute"
            send = self._chat(TPM, max_tokens=200)
            self.over_tokens = await self._step(step, TPM, "output=200", send)

    async def _failures(self) -> None:
        await self._step("upstream answers 500", CHAT, "status=500", self._chat(CHAT))
        await self._step("upstream answers 429", CHAT, "status=429", self._chat(CHAT))
        await self._step("upstream resets", CHAT, "reset=before_headers", self._chat(CHAT))

    async def _without_usage(self) -> None:
        await self._step("no usage, plain", CHAT, "output=17;usage=none", self._chat(CHAT))
        await self._step(
            "no usage, streamed", CHAT, "output=23;usage=none", self._stream(asks=True)
        )

    async def _client_leaves(self) -> None:
        async def leave(headers: dict[str, str]) -> str:
            stream = await self._openai[CHAT].chat.completions.create(
                model=_GPT, messages=_MESSAGES, stream=True, extra_headers=headers
            )
            chunks = 0
            async for chunk in stream:
                chunks += bool(chunk.choices and chunk.choices[0].delta.content)
                if chunks == 6:
                    break
            await stream.close()
            return f"left after {chunks} chunks"

        await self._step("client leaves in mid-stream", CHAT, "output=60;hang_after=6", leave)

    async def _limits_change(self) -> None:
        await self._room_in_minute()
        await self._step("request 1 of 1 a minute", CHANGED, "output=5", self._chat(CHANGED))
        await self._step("request 2 of 1 a minute", CHANGED, "output=5", self._chat(CHANGED))
        await asyncio.to_thread(self._stack.set_limits, CHANGED, rpm=5, tpm=100_000)
        await self._step("limit raised to 5", CHANGED, "output=5", self._chat(CHANGED))
        await asyncio.to_thread(self._stack.cli, "limits", "disable", CHANGED)
        await self._step("service disabled", CHANGED, "output=5", self._chat(CHANGED))

    async def _strangers(self) -> None:
        await self._step("service without limits", UNKNOWN, "", self._chat(UNKNOWN))
        await self._step("unknown API key", "nobody", "", self._chat("nobody"))

    # What the steps are made of.

    def _chat(self, service: str, **options: Any) -> Send:
        async def send(headers: dict[str, str]) -> str:
            await self._openai[service].chat.completions.create(
                model=_GPT, messages=_MESSAGES, extra_headers=headers, **options
            )
            return "200"

        return send

    def _stream(self, *, asks: bool) -> Send:
        options: Any = {"stream_options": {"include_usage": True}} if asks else {}

        async def send(headers: dict[str, str]) -> str:
            stream = await self._openai[CHAT].chat.completions.create(
                model=_GPT, messages=_MESSAGES, stream=True, extra_headers=headers, **options
            )
            chunks = [chunk async for chunk in stream]
            seen = any(chunk.usage is not None or not chunk.choices for chunk in chunks)
            return "200, usage chunk" if seen else "200, no usage chunk"

        return send

    async def _message(self, headers: dict[str, str]) -> str:
        await self._claude.messages.create(
            model=_CLAUDE, max_tokens=100, messages=_MESSAGES, extra_headers=headers
        )
        return "200"

    async def _message_stream(self, headers: dict[str, str]) -> str:
        async with self._claude.messages.stream(
            model=_CLAUDE, max_tokens=100, messages=_MESSAGES, extra_headers=headers
        ) as stream:
            final = await stream.get_final_message()
        return f"200, {final.usage.output_tokens} tokens out"

    async def _room_in_minute(self) -> None:
        left = await self._books.seconds_left_in_minute()
        if left < _MINUTE_ROOM_SECONDS:
            print(f"(waiting {left:.0f} s for the next minute)", flush=True)
            await asyncio.sleep(left + 0.05)

    async def _step(self, step: str, service: str, script: str, send: Send) -> str:
        """Send one request, wait until its reservation has ended, and show what it came to. Returns
        the request id that an error answer tells, or an empty text."""
        label = f"step-{len(self.rows)}"
        headers = {"x-fake": f"{script};label={label}" if script else f"label={label}"}
        remaining, request_id = None, ""
        try:
            status = await send(headers)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            status = _error_status(error)
            told = error.response.headers.get("x-ratelimit-remaining-tokens")
            remaining = int(told) if told is not None else None
            request_id = error.response.headers.get("x-request-id", "")
        except (openai.APIConnectionError, anthropic.APIConnectionError) as error:
            status = type(error).__name__
        entry, record = await self._ended(label)
        if entry is None:
            # The provider never saw it, so it was refused on the way.
            self.refused += 1
            row = Row(step=step, service=service, status=status, outcome="-", remaining=remaining)
        else:
            row = await self._admitted_row(step, service, status, entry, record)
        self.rows.append(row)
        print(line(row), flush=True)
        return request_id

    async def _admitted_row(
        self, step: str, service: str, status: str, entry: JournalEntry, record: Record | None
    ) -> Row:
        used = chargeable_tokens(entry)
        if record is None:
            return Row(step=step, service=service, status=status, outcome="UNMETERED", used=used)
        taken = (await self._books.windows()).get((record.root, record.minute), 0)
        return Row(
            step=step,
            service=record.root,
            status=status,
            outcome=record.outcome,
            estimated=record.input_tokens,
            reserved=record.reserved_tokens,
            used=used,
            charged=record.charged_tokens,
            remaining=max(0, record.token_limit - taken),
        )

    async def _ended(self, label: str) -> tuple[JournalEntry | None, Record | None]:
        """The journal entry and the record of a step once nothing of it is under way.

        A cut answer is under way until Envoy's access log has said who cut it. When the deadline
        passes, what there is then is shown, and the totals will tell."""
        until = time.monotonic() + _SETTLE_SECONDS
        while True:
            open_count = await self._books.open_count()
            journal = await self._books.journal()
            entry = next((entry for entry in journal if entry.label == label), None)
            record = None
            if entry is not None:
                records = await self._books.records()
                record = next((r for r in records if r.request_id == entry.request_id), None)
            under_way = (
                open_count > 0
                or (entry is not None and entry.ending == "open")
                or (record is not None and record.outcome == Outcome.CUT)
            )
            if not under_way or time.monotonic() > until:
                return entry, record
            await asyncio.sleep(_POLL_SECONDS)

    async def _balanced(self) -> Totals:
        """The totals. A better word about an ended request may still be on its way (a count that
        replaces a guess), so an imbalance is looked at again for a short while."""
        until = time.monotonic() + _BALANCE_SECONDS
        while True:
            totals = await self._books.totals()
            if (totals.drift == 0 and totals.open == 0) or time.monotonic() > until:
                return totals
            await asyncio.sleep(_POLL_SECONDS)


def _error_status(error: openai.APIStatusError | anthropic.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]  # Anthropic's client leaves the envelope on
    if not isinstance(body, dict):
        return str(error.status_code)
    code, kind = body.get("code"), body.get("type")
    # A 429's code is always the same; its type names the limit that refused.
    word = kind if code in (None, "rate_limit_exceeded") else code
    return f"{error.status_code} {word}" if word else str(error.status_code)


async def _run(stack: Stack) -> int:
    books = Books(redis_url=stack.redis_url, provider_url=stack.provider_url, services=_SERVICES)
    try:
        tour = Tour(stack, books)
        totals = await tour.run()
    finally:
        await books.close()
    requests, refused = tour.requests, tour.refused
    if requests != totals.admitted + refused:
        print(f"{requests} requests, but {totals.admitted} admitted and {refused} refused")
    print(
        "\nWhy was a request over its tokens? (To ask yourself use `make up`: this one stops now.)"
    )
    print(f"$ tokenweir explain {tour.over_tokens}")
    print(await asyncio.to_thread(stack.cli, "explain", tour.over_tokens))
    print(
        "open: reservations that nobody ended; drift: tokens charged and not used, or used and not"
    )
    print(
        f"demo: requests={requests} admitted={totals.admitted} refused={refused}"
        f" settled={totals.settled} released={totals.released}"
        f" open={totals.open} drift={totals.drift}",
        flush=True,
    )
    balances = totals.open == 0 and totals.drift == 0
    if balances and requests == totals.admitted + refused:
        return 0
    print(stack.child("serve").tail(), file=sys.stderr)
    return 1


def demo(args: argparse.Namespace) -> int:
    """Start the stack, take the tour, stop the stack. Exit status 1 when the books do not balance
    or the stack does not start. Raises SettingsError for a port that cannot be had."""
    if args.envoy_port is not None:
        check_port("--envoy-port", args.envoy_port)
    stop_on_signals()
    print("starting Valkey, the provider, the server, the reaper and Envoy ...", flush=True)
    try:
        with Stack(
            run_dir=args.run_dir,
            services=_SERVICES,
            envoy_port=args.envoy_port,
            envoy_options={"profile": args.profile},
        ) as stack:
            for service, (rpm, tpm) in _LIMITS.items():
                stack.set_limits(service, rpm=rpm, tpm=tpm)
            print(f"Envoy listens on {stack.base_url}\n\n{header()}", flush=True)
            return asyncio.run(_run(stack))
    except ChildError as error:
        print(f"tokenweir demo: {error}", file=sys.stderr)
        return 1
