"""The command ``tokenweir``, but it kills itself at a chosen step, as ``kill -9`` would.

``python -m tests.support.faulty_serve serve`` (or ``work``) is the real command with real objects;
some of their methods are wrapped. TOKENWEIR_TEST_KILL_AT names the step, as ``step`` or ``step:n``
for its n-th time. Nothing in ``extproc`` knows of this. The steps:

- of admission: ``admission.read``, ``admission.reply.before``, ``admission.reply.after``;
- of metering: ``metering.headers``, ``metering.chunk``, ``metering.end`` (the last message was read
  and nothing done with it yet), ``metering.reply.before`` and ``.after`` (of the last reply);
- of the ending: ``ending.entry``; ``settle.late`` holds metering's settlement back until then;
- of the store's calls: ``CALL.before``, ``CALL.sent`` (the bytes have left, nobody read the reply),
  ``CALL.after``, where CALL is ``reserve``, ``settle``, ``release``, ``undo`` or ``renew`` at the
  request's own root, or ``other_reserve`` and so on at the root of a shared ceiling. The ``.after``
  of the own root's settle and release comes after those of the other roots.

A server counts steps from the first request that it has read on, so that it can first clear up
after one that was killed.
"""

import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from extproc.cli import main
from extproc.core.ids import ACROSS_PREFIX
from extproc.envoy_io.admission import Admission
from extproc.envoy_io.attributes import MALFORMED
from extproc.envoy_io.ending import Ending
from extproc.envoy_io.metering import Metering
from extproc.envoy_io.server import _Processor
from extproc.stores import scripts
from extproc.stores.redis_link import RedisLink
from extproc.stores.reservation_store import RedisReservationStore

VARIABLE = "TOKENWEIR_TEST_KILL_AT"
SETTLE_LATE = "settle.late"
_SHAS = {
    scripts.load_script(name).sha.encode(): verb
    for name, verb in (
        (scripts.RESERVE, "reserve"),
        (scripts.RESERVE_POLICIES, "reserve"),
        (scripts.SETTLE, "settle"),
        (scripts.RELEASE, "release"),
        (scripts.RENEW, "renew"),
    )
}
# The last argument of a release that is an undo, as RESP spells it.
_UNDO_ENDS = b"\r\n$1\r\n1\r\n"


class Trap:
    """Kills this process at one step."""

    def __init__(self, where: str, *, is_armed: bool) -> None:
        self.step, _, times = where.partition(":")
        self._left = int(times or 1)
        self.is_armed = is_armed

    def hit(self, step: str) -> None:
        """The process is at ``step`` now."""
        if self.is_armed and step == self.step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    """A gRPC context whose reads and writes are seen."""

    def __init__(
        self,
        context: Any,
        *,
        on_read: Callable[[Any], None],
        on_write: Callable[[str], None],
    ) -> None:
        self._context = context
        self._on_read = on_read
        self._on_write = on_write

    async def read(self) -> Any:
        message = await self._context.read()
        if message is not grpc.aio.EOF and message is not MALFORMED:
            self._on_read(message)
        return message

    async def write(self, reply: Any) -> None:
        self._on_write("before")
        await self._context.write(reply)
        self._on_write("after")


def _watch_admission(trap: Trap) -> None:
    decide, deciding = Admission.decide, _Processor._deciding

    async def decided(self: Admission, message: Any, *rest: Any, **named: Any) -> Any:
        if message is not MALFORMED:
            trap.is_armed = True
            trap.hit("admission.read")
        reply = await decide(self, message, *rest, **named)
        trap.hit("admission.reply.before")
        return reply

    def watched(self: _Processor, which: Any) -> Any:
        handler = deciding(self, which)

        async def answered(message: Any, context: Any) -> Any:
            # gRPC calls back when the answer has been sent.
            context.add_done_callback(lambda _: trap.hit("admission.reply.after"))
            return await handler(message, context)

        return answered

    _replace(Admission, "decide", decided)
    _replace(_Processor, "_deciding", watched)


def _watch_metering(trap: Trap) -> None:
    process = Metering.process

    async def watched(self: Metering, context: Any) -> None:
        ended = False

        def on_read(message: Any) -> None:
            nonlocal ended
            kind = message.WhichOneof("request")
            ended = kind == "response_trailers" or (
                kind == "response_body" and message.response_body.end_of_stream
            )
            trap.hit("metering.headers" if kind == "response_headers" else "metering.chunk")
            if ended:
                trap.hit("metering.end")

        def on_write(moment: str) -> None:
            if ended:
                trap.hit(f"metering.reply.{moment}")

        await process(self, _Watched(context, on_read=on_read, on_write=on_write))

    _replace(Metering, "process", watched)


def _watch_ending(trap: Trap) -> None:
    on_entry = Ending.on_entry

    def watched(self: Ending, entry: Any) -> None:
        trap.hit("ending.entry")
        trap.hit(SETTLE_LATE)
        on_entry(self, entry)

    _replace(Ending, "on_entry", watched)


def _call_name(verb: str, *, root: str, undo: bool) -> str:
    name = "undo" if undo else verb
    return f"other_{name}" if root.startswith(ACROSS_PREFIX) else name


def _watch_store(trap: Trap) -> None:
    def watched(verb: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(method)
        async def call(self: RedisReservationStore, first: Any, *rest: Any, **named: Any) -> Any:
            root = first if isinstance(first, str) else first.root
            name = _call_name(verb, root=root, undo=getattr(first, "undo", False))
            if trap.step == SETTLE_LATE and name == "settle" and trap.is_armed:
                await asyncio.Event().wait()
            trap.hit(f"{name}.before")
            result = await method(self, first, *rest, **named)
            trap.hit(f"{name}.after")
            return result

        return call

    for verb in ("reserve", "settle", "release", "renew"):
        method = getattr(RedisReservationStore, verb)
        _replace(RedisReservationStore, verb, watched(verb, method))


def _watch_connection(trap: Trap) -> None:
    def watched(self: RedisLink) -> None:
        calls = [call.packed for call in self._waiting]
        assert self._transport is not None
        # Past the event loop: what it still holds would die with it.
        descriptor = self._transport.get_extra_info("socket").fileno()
        unsent = b"".join(calls)
        while unsent:
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[os.write(descriptor, unsent) :]
        for call in calls:
            verb = next((verb for sha, verb in _SHAS.items() if sha in call), None)
            if verb is not None:
                root = ACROSS_PREFIX if b"{" + ACROSS_PREFIX.encode() in call else ""
                undo = verb == "release" and call.endswith(_UNDO_ENDS)
                trap.hit(f"{_call_name(verb, root=root, undo=undo)}.sent")

    _replace(RedisLink, "_write", watched)


def _replace(owner: type, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _set_trap(where: str, *, is_armed: bool) -> None:
    trap = Trap(where, is_armed=is_armed)
    for watch in (
        _watch_admission,
        _watch_metering,
        _watch_ending,
        _watch_store,
        _watch_connection,
    ):
        watch(trap)


if __name__ == "__main__":
    if step := os.environ.get(VARIABLE):
        _set_trap(step, is_armed="serve" not in sys.argv)
    sys.exit(main())
