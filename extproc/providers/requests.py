"""What a request says about itself, as far as a limiter needs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

JsonObject = dict[str, object]

# What becomes of the usage event of a stream whose client did not ask for it: asked for and taken
# out of the answer again, asked for and left there, or not asked for (then output is counted).
UsageEvents = Literal["hide", "show", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How large a request may be before it is refused unread.

    ``max_decoded_bytes`` bounds the body without its content encoding; ``max_depth`` the nesting of
    its JSON; ``max_choices`` the answers asked for at once; ``max_output_tokens`` the client's own
    cap, so that sums stay exact in Redis (below 2**53). ``strict_cap_tokens`` is written into a
    request that has no cap. ``usage_events``: only where the answer passes through us can what the
    client did not ask for be hidden from it.
    """

    max_decoded_bytes: int = 16 * 1024 * 1024
    max_depth: int = 100
    max_choices: int = 128
    max_output_tokens: int = 2**31 - 1
    strict_cap_tokens: int | None = None
    usage_events: UsageEvents = "hide"


@dataclass(slots=True, kw_only=True)
class RequestFacts:
    """One readable request.

    ``input_tokens`` is our estimate of everything that the provider will bill as input.
    ``output_cap_tokens`` is the client's cap times ``choices``; None when it gave none, 0 where
    the format has no output. ``factor_percent`` turns counts of ``encoding`` into the provider's
    tokens (already applied to ``input_tokens``). ``new_body`` is the body that must be forwarded
    instead, when usage was asked for on the client's behalf; then ``hides_usage`` says that the
    usage event must be taken out of the answer. ``cap_path`` is where in the body strict mode
    writes a cap, outermost name first; empty where there is no such field.
    ``parts`` is the input by kind (messages, tools, images ...) before the factor, for people;
    ``media_tokens`` are those of it that the factor does not touch.
    ``reserves_cap``: pictures and sound do not tell their tokens, so ``output_cap_tokens`` is not
    the client's but the estimate itself.
    ``hidden_input``: the provider adds what it remembers, so its report says nothing of our count.
    """

    wire_format: str
    model: str
    stream: bool
    input_tokens: int
    output_cap_tokens: int | None
    choices: int
    encoding: str
    factor_percent: int = 100
    new_body: bytes | None = None
    hides_usage: bool = False
    cap_path: tuple[str, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict, compare=False)
    media_tokens: int = 0
    hidden_input: bool = False
    reserves_cap: bool = False


@dataclass(frozen=True, slots=True)
class Unmetered:
    """A request that we do not know how to meter. ``reason`` is one of few fixed words.

    ``wire_format`` is the name of a path that is known all the same, ``is_free`` says that the
    provider bills nothing for it.
    """

    reason: str
    wire_format: str = ""
    is_free: bool = False
