"""The reservation handle: what travels with a request through Envoy as dynamic metadata.

It lets any worker settle any request without having seen its admission. Namespace ``llm``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.ids import is_valid_id
from extproc.core.limits import MAX_COUNT
from extproc.core.reservations import Admitted, Slip

NAMESPACE = "llm"
# Profile native: where Envoy's own filters write the numbers of an answer's usage.
USAGE_NAMESPACE = "llm.usage"
# Metering sets this when it has taken over the settlement, so that the ending need not.
METERED_KEY = "met"
# Admission sets this, to the reason, on what it lets through without a reservation.
UNMETERED_KEY = "unm"

# The handle in a Struct: three texts that people look for in an access log, and the rest in one,
# because Envoy repeats all of it with every chunk and in every entry.
_REST_KEY = "hdl"
_SEPARATOR = "|"
_REST_FIELDS = 9
# Only of a request that was admitted from a slice.
_SLICE_KEY = "slc"
HANDLE_KEYS = ("rid", "root", "model", _REST_KEY, _SLICE_KEY)

# How an Envoy has answers metered: they pass through us, copies of them come to us, or Envoy reads
# usage itself and its access log tells it.
Profile = Literal["inline", "observe", "native"]
_PROFILES: dict[str, Profile] = {"observe": "observe", "native": "native"}


@dataclass(slots=True, kw_only=True)
class Handle:
    """Identifies a reservation and tells how to read its answer.

    Not frozen, as everything that is made for each request: it would take three times as long.
    """

    reservation_id: str
    root: str
    wire_format: str
    model: str
    input_tokens: int
    reserved_tokens: int
    encoding: str
    hides_usage: bool
    # Turns our tokenizer's counts into the provider's tokens, for an answer that we must count.
    factor_percent: int = 100
    # The learned factor that is in ``input_tokens``; 0: nothing is to be learned from the answer.
    learned_permille: int = 0
    request_id: str = ""
    profile: Profile = "inline"
    # The slice that it was admitted from (``core.slices``), empty for all others.
    slice_id: str = ""

    @property
    def slip(self) -> Slip | None:
        """What a settlement must know of a request that was admitted from a slice."""
        if not self.slice_id:
            return None
        return Slip(
            slice_id=self.slice_id,
            input_tokens=self.input_tokens,
            reserved_tokens=self.reserved_tokens,
            wire_format=self.wire_format,
            model=self.model,
            request_id=self.request_id,
        )

    def to_fields(self) -> dict[str, str]:
        """Flat fields for a protobuf Struct. The request id is a client's text and stands last."""
        fields = {
            "rid": self.reservation_id,
            "root": self.root,
            "model": self.model,
            _REST_KEY: (
                f"{self.wire_format}|{self.input_tokens}|{self.reserved_tokens}|{self.encoding}|"
                f"{'1' if self.hides_usage else '0'}|{self.factor_percent}|"
                f"{self.learned_permille}|{self.profile}|{self.request_id}"
            ),
        }
        if self.slice_id:
            fields[_SLICE_KEY] = self.slice_id
        return fields


def handle_from_fields(fields: Mapping[str, str]) -> Handle | None:
    """Read a handle back; None when there is none or it is not one of ours."""
    reservation_id, root = fields.get("rid", ""), fields.get("root", "")
    if not is_valid_id(reservation_id) or not is_valid_id(root):
        return None
    rest = fields.get(_REST_KEY, "").split(_SEPARATOR, _REST_FIELDS - 1)
    if len(rest) != _REST_FIELDS:
        return None
    wire_format, given, reserved, encoding, hides, factor, learned, profile, request_id = rest
    try:
        return Handle(
            reservation_id=reservation_id,
            root=root,
            wire_format=wire_format,
            model=fields.get("model", ""),
            input_tokens=_count(given),
            reserved_tokens=_count(reserved),
            encoding=encoding,
            hides_usage=hides == "1",
            factor_percent=_count(factor) or 100,
            learned_permille=_count(learned),
            request_id=request_id,
            profile=_PROFILES.get(profile, "inline"),
            slice_id=_id(fields.get(_SLICE_KEY, "")),
        )
    except ValueError:
        return None


def limit_fields(admitted: Admitted) -> dict[str, str]:
    """The six values that the route turns into ``x-ratelimit-*`` headers on a success."""
    fields: dict[str, str] = {}
    if (view := admitted.requests) is not None:
        fields["limit_requests"] = str(view.limit)
        fields["remaining_requests"] = str(max(0, view.remaining))
        fields["reset_requests"] = duration_text(view.reset_ms)
    if (view := admitted.tokens) is not None:
        fields["limit_tokens"] = str(view.limit)
        fields["remaining_tokens"] = str(max(0, view.remaining))
        fields["reset_tokens"] = duration_text(view.reset_ms)
    return fields


def duration_text(milliseconds: int) -> str:
    """OpenAI's spelling of a time in ``x-ratelimit-reset-*``: ``120ms``, ``1m30s``, ``7h3m24s``.

    Source: OpenAI's guide "Rate limits", table of headers (values such as 1s and 6m0s); hours as in
    Go's durations, which these are.
    """
    if milliseconds < 1000:
        return f"{max(0, milliseconds)}ms"
    seconds = -(-milliseconds // 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _id(text: str) -> str:
    return text if is_valid_id(text) else ""


def _count(text: str) -> int:
    """A number that we wrote. Raises ValueError for anything else."""
    number = int(text)
    if not 0 <= number <= MAX_COUNT:
        raise ValueError("out of bounds")
    return number
