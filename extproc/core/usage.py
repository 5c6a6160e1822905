"""What an answer used, as its provider reported it."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer. None means "not reported", which is not zero.

    ``input_tokens`` includes cache reads and cache writes; ``output_tokens`` includes reasoning.
    Parts by kind are inside those totals: what was written to a cache by its lifetime (5 minutes,
    1 hour), audio, images, what other models read within the answer. ``server_tool_calls`` are no
    tokens but searches and the like that the provider ran and bills by the call.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = None
    image_input_tokens: int | None = None
    image_output_tokens: int | None = None
    other_input_tokens: int | None = None
    server_tool_calls: int | None = None

    @property
    def is_known(self) -> bool:
        """True when both totals were reported."""
        return self.input_tokens is not None and self.output_tokens is not None

    @property
    def is_zero(self) -> bool:
        """True when something was reported and all of it is zero: often a placeholder."""
        reported = [value for value in _values(self) if value is not None]
        return bool(reported) and not any(reported)

    @property
    def has_parts(self) -> bool:
        """True when more than the two totals was reported, and is not zero."""
        return any(_values(self)[2:])

    def kinds(self) -> dict[str, int]:
        """What was reported and is more than zero, by kind; names as in the fields, without
        ``_tokens``. Kinds other than input and output are parts of these, or calls."""
        if not self.has_parts:
            totals = (("input", self.input_tokens), ("output", self.output_tokens))
            return {name: value for name, value in totals if value}
        pairs = zip(_KINDS, _values(self), strict=True)
        return {name: value for name, value in pairs if value}

    def merged(self, later: "Usage") -> "Usage":
        """This usage overwritten field by field by a later, cumulative report.

        Nothing is ever added up: providers repeat running totals. A later zero does not overwrite
        an earlier positive value, because gateways send placeholder zeros after real numbers.
        """
        both = zip(_NAMES, _values(self), _values(later), strict=True)
        return Usage(
            **{name: other if other or mine is None else mine for name, mine, other in both}
        )

    def beside(self, other: "Usage") -> "Usage":
        """This usage and that of another model, reported beside it: the only sum there is.

        What neither has stays unreported."""
        other = replace(other, other_input_tokens=other.input_tokens)
        both = zip(_NAMES, _values(self), _values(other), strict=True)
        return Usage(**{name: (mine or 0) + more if more else mine for name, mine, more in both})


_NAMES = tuple(field.name for field in fields(Usage))
_values: Callable[[Usage], tuple[int | None, ...]] = attrgetter(*_NAMES)
_KINDS = tuple(name.removesuffix("_tokens") for name in _NAMES)
TOTALS = frozenset({"input", "output"})
CALLS = "server_tool_calls"
