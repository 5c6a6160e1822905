"""What a wire format is: how it is told by its path, how its requests and answers are read.

One file in ``formats/`` makes one of these, the registry finds them. Another package may bring its
own by the entry point group ``tokenweir.wire_formats``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from extproc.core.usage import Usage
from extproc.providers.error_bodies import ErrorShape, openai_error
from extproc.providers.requests import JsonObject, ReadLimits, RequestFacts
from extproc.providers.sse import MAX_EVENT_BYTES, SseEvent
from extproc.providers.tally import TextTally

# An end that stands for every path, for formats that are told by host or content type alone.
ANY_END = "*"


class Target(NamedTuple):
    """Where a request goes: the segments of its path as the most lenient upstream sees them.

    ``lowered`` are the same in lower case. ``host`` and ``media_type`` are in lower case, without
    port and parameters; "" when they are not known.
    """

    segments: tuple[str, ...]
    lowered: tuple[str, ...]
    host: str = ""
    media_type: str = ""

    @property
    def before(self) -> str:
        """The segment before the last, in lower case; "" when there is none."""
        return self.lowered[-2] if len(self.lowered) > 1 else ""


class Answer(Protocol):
    """What one answer said so far. Must not raise, whatever the provider sends.

    ``running_output_tokens`` is a number that the provider gave for the output so far; the tally
    then holds only the text that came after it (``TextTally.restart``). ``complete`` is true when
    the end of a stream was seen, ``error`` when the provider said that it failed. ``unread`` says
    that something was produced whose tokens its bytes do not tell (images, sound) and that no usage
    came for it: then what was reserved stands. ``response_id`` and ``response_model`` are the
    provider's own words, at most 128 characters.
    """

    @property
    def running_output_tokens(self) -> int: ...

    @property
    def saw_output(self) -> bool: ...

    @property
    def error(self) -> bool: ...

    @property
    def unread(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    @property
    def response_id(self) -> str | None: ...

    @property
    def response_model(self) -> str | None: ...

    @property
    def usage(self) -> Usage: ...

    def take_event(self, event: SseEvent) -> None:
        """One event of a stream, whatever its framing."""

    def take_json(self, value: JsonObject) -> None:
        """A whole answer that is one JSON object."""


class Framer(Protocol):
    """Cuts a stream into events, incrementally and in bounded memory. Must not raise.

    ``truncated`` says that something was too large or too broken to be read. ``unfinished`` are the
    bytes held back; only a framer that was asked to keep raw bytes needs them.
    """

    @property
    def truncated(self) -> bool: ...

    def feed(self, chunk: bytes, *, end: bool = False) -> list[SseEvent]: ...

    def unfinished(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """A way to cut an answer into events that is neither SSE nor one JSON document.

    ``begins`` tells by the first bytes (after a BOM and white space) and the content type whether
    an answer is so; None asks for more bytes, and the result must not depend on how many came.
    ``make`` builds a framer; True asks it to keep each event's raw bytes (only where usage is
    asked for on the client's behalf, because its event may be taken out).
    """

    name: str
    begins: Callable[[bytes, str], bool | None]
    make: Callable[[bool], Framer]


def always(_: Target) -> bool:
    """Matches whatever has the right end."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Paths that are known. The first route that has the path's end and matches is taken.

    ``ends`` are last segments in lower case; ``:verb`` stands for any segment that ends so
    (``models/NAME:generateContent``), ``*`` for every path. ``provider`` is the value of the scope
    of that name until a header or route says otherwise. ``error_headers``: what a refusal of ours
    carries beside its body, by its status.
    """

    name: str
    provider: str
    ends: tuple[str, ...]
    matches: Callable[[Target], bool] = always
    error_shape: ErrorShape = openai_error
    error_headers: Callable[[int], dict[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPath(Route):
    """A path that is known and not metered; its name is the reason that is counted.

    ``is_free`` says that the provider bills nothing for it, so it passes whatever the setting says.
    """

    is_free: bool


# The value of an answer's header by its name in lower case, "" when it is absent.
Header = Callable[[str], str]
Reader = Callable[[JsonObject, ReadLimits, Target], RequestFacts]
# What an answer is that is neither JSON nor events: the provider's error page, text that was
# produced, or output whose bytes tell nothing (sound).
PlainAnswer = Literal["error", "text", "binary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat(Route):
    """A format whose tokens are metered.

    ``read`` makes facts of a body, raising RequestError (400 with the field) and nothing else; it
    gets the target for models and verbs in the path. A multipart form comes as an object of its
    fields where ``takes_forms``. ``answer`` makes the reader of one answer. ``framings`` are tried
    before JSON and SSE are. ``factor_percent`` turns our counts into the provider's tokens where
    the request's own factor is not known. ``has_text_output`` is false for embeddings.
    ``asks_usage`` adds ``stream_options.include_usage`` to a stream's request and takes the event
    out of the answer again. A larger event of SSE than ``max_event_bytes`` passes unread.
    ``header_usage`` is what the headers of an answer report; its body, where it does, goes before.
    """

    read: Reader
    answer: Callable[[TextTally], Answer]
    framings: tuple[Framing, ...] = ()
    factor_percent: int = 100
    has_text_output: bool = True
    asks_usage: bool = False
    max_event_bytes: int = MAX_EVENT_BYTES
    takes_forms: bool = False
    plain_answer: PlainAnswer = "error"
    header_usage: Callable[[Header], Usage] | None = None
