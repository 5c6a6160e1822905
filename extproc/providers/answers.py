"""Reads one answer as it streams by: usage, text, errors, and the usage event to hide.

A reader never raises and never delays a byte, except where an event may have to be hidden. It
trusts the bytes more than the labels: content-type and content-encoding are wrong in both
directions in practice.
"""

import codecs
from collections.abc import Generator

from extproc.core.usage import Usage
from extproc.providers.answer_kinds import Kind, kind_of
from extproc.providers.content_coding import sniff_answer
from extproc.providers.held_chunks import HeldChunks
from extproc.providers.hidden_usage import hides_nothing, is_usage_only
from extproc.providers.inflaters import Inflater
from extproc.providers.json_collector import JsonCollector
from extproc.providers.json_runs import objects_of
from extproc.providers.ndjson import NdjsonParser
from extproc.providers.registry import format_named
from extproc.providers.requests import JsonObject
from extproc.providers.sse import SseEvent, SseParser
from extproc.providers.tally import TextTally
from extproc.providers.tokens import count_tokens
from extproc.providers.turn_steps import TURN_BYTES, all_of, is_one_step, step_end
from extproc.providers.wire_formats import Answer, Framer, Header, WireFormat

MAX_INFLATED_BYTES = 64 * 1024 * 1024
_BOM_AND_SPACE = b"\xef\xbb\xbf \t\r\n"
_LINE_ENDS = (b"\n", b"\r\n", b"\r")


def answer_reader(
    wire_format: str,
    *,
    content_type: str | None,
    content_encoding: str | None,
    hides_usage: bool,
    encoding: str,
    factor_percent: int | None = None,
    header: Header | None = None,
) -> "AnswerReader":
    """A reader for one answer. ``factor_percent`` is that of the request's facts; None takes the
    format's usual one. ``header`` gives the answer's headers. An unknown format is read as
    OpenAI's."""
    spoken = format_named(wire_format)
    told = spoken.header_usage
    return AnswerReader(
        spoken,
        TextTally(encoding),
        content_type=content_type,
        content_encoding=content_encoding,
        hides_usage=hides_usage,
        encoding=encoding,
        factor_percent=spoken.factor_percent if factor_percent is None else factor_percent,
        told=Usage() if header is None or told is None else told(header),
    )


class AnswerReader:
    """Feed it every chunk; ask it at any time. Make one with ``answer_reader``."""

    def __init__(
        self,
        spoken: WireFormat,
        tally: TextTally,
        *,
        content_type: str | None,
        content_encoding: str | None,
        hides_usage: bool,
        encoding: str,
        factor_percent: int,
        told: Usage,
    ) -> None:
        self._spoken = spoken
        self._answer: Answer = spoken.answer(tally)
        self._tally = tally
        self._content_type = (content_type or "").lower()
        self._content_encoding = content_encoding
        self._hides = hides_usage
        self._encoding = encoding
        self._factor_percent = factor_percent
        self._told = told
        self._coded_head: bytes | None = b""  # bytes of which the coding is not known yet
        self._inflater: Inflater | None = None
        self._head = b""  # plain bytes of which the kind is not known yet
        self._kind: Kind | None = None
        self._sse = SseParser(keep_raw=hides_usage, max_event_bytes=spoken.max_event_bytes)
        self._framer: Framer = self._sse
        self._decoder: codecs.IncrementalDecoder | None = None
        self._hid_open_event = False
        markers: tuple[bytes, ...] | None = getattr(self._answer, "text_markers", None)
        self._held = HeldChunks(None if hides_usage else markers)
        self._gives_up_hiding = False
        self._gave_up = False
        self._json = JsonCollector()
        self._json_is_read = True
        self._json_value: JsonObject | None = None
        self._error_value: JsonObject | None = None
        self._is_a_run = False  # of several JSON documents, where one was expected
        self.readable = True

    @property
    def usage(self) -> Usage:
        """What the provider reported so far, never summed up; see Usage.merged."""
        self._catch_up()
        return self._told.merged(self._answer.usage)

    @property
    def saw_output(self) -> bool:
        """True when something was produced; also for bytes that we cannot read."""
        self._catch_up()
        return self._answer.saw_output or self.unread or self._tally.saw_text

    @property
    def unread(self) -> bool:
        """True when part of the answer was in an encoding, or of a size, that is not read."""
        self._catch_up()
        is_text_lost = self._json.overflowed and not self.usage.is_known
        is_lost = is_text_lost or self._framer.truncated or self._kind == "binary"
        is_lost = is_lost or (self._inflater is not None and self._inflater.lost)
        return is_lost or self._answer.unread or not self.readable

    @property
    def error(self) -> bool:
        """True when a body with a good status holds the provider's error (or no JSON at all)."""
        self._catch_up()
        is_page = self._kind == "text" and self._spoken.plain_answer == "error"
        return self._answer.error or is_page

    @property
    def error_value(self) -> JsonObject | None:
        """The event, or the whole document, that says that the provider failed."""
        self._catch_up()
        return self._error_value

    @property
    def response_id(self) -> str | None:
        """The provider's own id of the answer, where its body has one."""
        self._catch_up()
        return self._answer.response_id

    @property
    def response_model(self) -> str | None:
        """The model that the provider says has answered."""
        self._catch_up()
        return self._answer.response_model

    @property
    def complete(self) -> bool:
        """True when the end marker, or a well-formed JSON document, was seen."""
        self._catch_up()
        return self._answer.complete or self._json_value is not None

    def counted_output_tokens(self) -> int:
        """Tokens of the output so far: the provider's running number and the text after it.

        A JSON document that was cut counts as the text that it is, a little too much.
        """
        self._catch_up()
        counted = self._tally.count()
        is_cut = self._json_value is None and not self._is_a_run
        if self._kind == "json" and is_cut and self._spoken.has_text_output:
            counted = self._count_cut(b"" if self._json.overflowed else self._json.raw())
        elif isinstance(self._framer, NdjsonParser):
            counted += self._count_cut(self._framer.cut_document())
        own = -(-counted * self._factor_percent // 100)
        return self._answer.running_output_tokens + own

    def _count_cut(self, document: bytes) -> int:
        return count_tokens(document.decode("utf-8", "replace"), self._encoding)

    def stop_hiding(self) -> None:
        """With the next chunk, pass on what is held and then everything as it comes: used when the
        process is about to stop and would take held bytes with it."""
        self._gives_up_hiding = True

    def give_up(self) -> None:
        """Read no more: the rest passes unread, from the next step on."""
        self.readable = False
        self._gave_up = self._gives_up_hiding = True

    def is_short(self, chunk: bytes) -> bool:
        """Whether ``feed`` takes a few ms at most."""
        return (
            (is_one_step(chunk) if self._framer is self._sse else len(chunk) <= TURN_BYTES)
            and self._inflater is None
            and not self._tally.is_full
            and (self._coded_head is None or self._begins_plain(chunk))
        )

    def _begins_plain(self, chunk: bytes) -> bool:
        """Whether the first chunk tells that nothing is compressed, as nearly all do."""
        if self._coded_head or len(chunk) < 2 or sniff_answer(chunk, self._content_encoding):
            return False
        self._coded_head = None
        return True

    @property
    def left_to_read(self) -> int:
        """Bytes, or characters, that the first question after the end has to read and count."""
        cut = self._framer.cut_size if isinstance(self._framer, NdjsonParser) else 0
        return self._json.size + self._tally.chars + self._held.size + cut

    def feed(self, chunk: bytes, *, end: bool) -> bytes | None:
        """Take the next chunk. None: pass it on unchanged; bytes: pass these on instead.

        ``end`` is true with the last chunk (which may be empty); held bytes then come out.
        """
        if self.is_short(chunk) and self.readable and not self._gives_up_hiding:
            if self._may_wait(chunk, end=end):
                return None
            self._read_held()
            out = self._read(chunk, end=end)
            return None if not self._hides or out == chunk else out
        return all_of(self.steps(chunk, end=end))

    def steps(self, chunk: bytes, *, end: bool) -> Generator[None, None, bytes | None]:
        """The same in steps of a few ms. All must be taken before anything else is asked."""
        while self._held:
            self._read_some()
            yield
        data, hides = chunk, self._hides
        if self._coded_head is not None:
            data = self._coded_head + chunk
            if len(data) < 2 and not end:
                # One byte does not tell whether the answer is compressed.
                self._coded_head = data
                return b"" if hides else None
            self._coded_head = None
            self._choose_coding(data)
        if not self.readable:
            out = data
        elif self._inflater is not None:
            # Compressed bytes cannot be changed, so nothing is hidden.
            out = data
            for piece in self._inflater.pieces(data):
                if len(piece) <= TURN_BYTES and not self._tally.is_full:
                    self._read(piece, end=False)
                else:
                    yield from self._read_in_steps(piece, end=False)
                yield
                if self._gave_up:
                    break
            if end and not self._gave_up:
                self._read(b"", end=True)
        else:
            out = yield from self._read_in_steps(data, end=end)
        if self._hides and self._gives_up_hiding:
            out += self._let_go()
        return None if not hides or out == chunk else out

    def _may_wait(self, chunk: bytes, *, end: bool) -> bool:
        """Hold a chunk of events that can be passed on before it is read."""
        if self._kind != "events" or (end and not self._held.may_end):
            return False
        if self._hides:
            is_begin = self._framer is self._sse and self._sse.is_between_events
            if not is_begin or self._hid_open_event or not hides_nothing(chunk):
                return False
        if self._held.add(chunk, end=end):
            self._read_some()
        return True

    def _read_some(self) -> None:
        data = self._held.take()
        self._read(data, end=self._held.ended and not self._held)

    def _read_held(self) -> None:
        while self._held:
            self._read_some()

    def skip_told_text(self) -> None:
        """After the end: what was produced need not be read where the end tells what was used."""
        if self._held and self._framer is self._sse and self._sse.is_between_events:
            is_fine = not self._answer.error
            if is_fine and self._held.drop_text(self._spoken.answer(TextTally(self._encoding))):
                self._tally.saw_text = True

    def _read_in_steps(self, data: bytes, *, end: bool) -> Generator[None, None, bytes]:
        out: list[bytes] = []
        at, size = 0, len(data)
        while True:
            until = step_end(data, at)
            out.append(self._read(data[at:until], end=end and until == size))
            at = until
            if self._tally.is_full:
                yield from self._tally.flush()
            if at == size:
                return b"".join(out)
            yield
            if self._gave_up:
                if self._hides:
                    out.append(self._let_go())
                out.append(data[at:])
                return b"".join(out)

    def _let_go(self) -> bytes:
        """Hide nothing any more; what is held."""
        self._hides = False
        return self._head + self._framer.unfinished()

    def _choose_coding(self, start: bytes) -> None:
        kind = sniff_answer(start, self._content_encoding) if start else None
        if kind == "?":
            self.readable = False
        elif kind is not None:
            self._inflater = Inflater(kind, max_bytes=MAX_INFLATED_BYTES)

    def _read(self, data: bytes, *, end: bool) -> bytes:
        """Read plain bytes; the answer is what to forward (complete only when hiding)."""
        before = b""
        if self._kind is None:
            head = self._head + data
            data = head.lstrip(_BOM_AND_SPACE)
            before = head[: len(head) - len(data)]
            self._kind, make = kind_of(self._spoken, data, self._content_type, end=end)
            if self._kind is None:
                self._head = data
                return before
            if make is not None:
                self._framer = make(self._hides)
            self._head = b""
        if self._kind == "events":
            return before + self._read_events(self._framer.feed(data, end=end))
        if self._kind == "json":
            self._json.add(data)
            self._json_is_read = False
        elif self._kind == "text" and self._spoken.plain_answer == "text":
            self._read_text(data, end=end)
        return before + data

    def _read_text(self, data: bytes, *, end: bool) -> None:
        """Text that was produced, with nothing around it."""
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tally.add("", self._decoder.decode(data, end))

    def _read_events(self, events: list[SseEvent]) -> bytes:
        if not self._hides:
            for event in events:
                if event.value is not None or event.done:
                    self._take_event(event)
            return b""
        out: list[bytes] = []
        for event in events:
            is_blank = event.value is None and not event.done and event.raw in _LINE_ENDS
            if is_blank and self._hid_open_event:
                self._hid_open_event = False
                continue
            self._hid_open_event = False
            if event.value is not None or event.done:
                self._take_event(event)
                if is_usage_only(event.value):
                    self._hid_open_event = event.is_open
                    continue
            out.append(event.raw)
        return b"".join(out)

    def _take_event(self, event: SseEvent) -> None:
        self._answer.take_event(event)
        if self._answer.error and self._error_value is None:
            self._error_value = event.value

    def _catch_up(self) -> None:
        """Read what is not read yet: chunks that were passed on, or the document."""
        self._read_held()
        if self._json_is_read:
            return
        self._json_is_read = True
        value = self._json.value()
        if value is not None and self._json_value is None:
            self._json_value = value
            self._answer.take_json(value)
            if self._answer.error:
                self._error_value = value
        elif self._json_value is None and not self._json.overflowed:
            self._read_run()

    def _read_run(self) -> None:
        """No document, or not one alone. Read anew from its start each time it is asked for, which
        is at the end."""
        values = objects_of(self._json.raw())
        if not values:
            return
        self._is_a_run = True
        self._tally.restart()
        self._answer = self._spoken.answer(self._tally)
        if len(values) == 1:
            self._answer.take_json(values[0])
            return
        for value in values:
            self._answer.take_event(SseEvent(b"", value))
