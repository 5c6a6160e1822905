"""The reservation handle: what travels with a request through Envoy as dynamic metadata.

It lets any worker settle any request without having seen its admission. Namespace ``llm``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.ids import is_valid_id
from extproc.core.limits import MAX_COUNT
from extproc.core.reservations import Admitted, Slip, WindowView

NAMESPACE = "llm"
# Profile native: where Envoy's own filters write the numbers of an answer's usage.
USAGE_NAMESPACE = "llm.usage"
# Metering sets this when it has taken over the settlement, so that the ending need not.
METERED_KEY = "met"
# Admission sets this, to the reason, on what it lets through without a reservation.
UNMETERED_KEY = "unm"

Field = str | int

# How an Envoy has answers metered: they pass through us, copies of them come to us, or Envoy reads
# usage itself and its access log tells it.
Profile = Literal["inline", "observe", "native"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Identifies a reservation and tells how to read its answer."""

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

    def to_fields(self) -> dict[str, Field]:
        """Flat fields for a protobuf Struct."""
        fields: dict[str, Field] = {
            "rid": self.reservation_id,
            "root": self.root,
            "fmt": self.wire_format,
            "model": self.model,
            "input": self.input_tokens,
            "reserved": self.reserved_tokens,
            "enc": self.encoding,
            "hide": int(self.hides_usage),
            "fac": self.factor_percent,
            "lrn": self.learned_permille,
            "req": self.request_id,
        }
        if self.profile != "inline":
            fields["prf"] = self.profile
        if self.slice_id:
            fields["slc"] = self.slice_id
        return fields


def handle_from_fields(fields: Mapping[str, object]) -> Handle | None:
    """Read a handle back; None when there is none or it is not one of ours."""
    reservation_id, root = fields.get("rid"), fields.get("root")
    if not isinstance(reservation_id, str) or not isinstance(root, str):
        return None
    if not is_valid_id(reservation_id) or not is_valid_id(root):
        return None
    return Handle(
        reservation_id=reservation_id,
        root=root,
        wire_format=_text(fields.get("fmt")),
        model=_text(fields.get("model")),
        input_tokens=_count(fields.get("input")),
        reserved_tokens=_count(fields.get("reserved")),
        encoding=_text(fields.get("enc")),
        hides_usage=bool(_count(fields.get("hide"))),
        factor_percent=_count(fields.get("fac")) or 100,
        learned_permille=_count(fields.get("lrn")),
        request_id=_text(fields.get("req")),
        profile=_profile(fields.get("prf")),
        slice_id=_id(fields.get("slc")),
    )


def _profile(value: object) -> Profile:
    return value if value == "observe" or value == "native" else "inline"  # noqa: PLR1714 - for mypy


def limit_fields(admitted: Admitted) -> dict[str, Field]:
    """The six values that the route turns into ``x-ratelimit-*`` headers on a success."""
    return {
        **_window_fields("requests", admitted.requests),
        **_window_fields("tokens", admitted.tokens),
    }


def _window_fields(noun: str, view: WindowView | None) -> dict[str, Field]:
    if view is None:
        return {}
    return {
        f"limit_{noun}": str(view.limit),
        f"remaining_{noun}": str(max(0, view.remaining)),
        f"reset_{noun}": duration_text(view.reset_ms),
    }


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


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _id(value: object) -> str:
    return value if isinstance(value, str) and is_valid_id(value) else ""


def _count(value: object) -> int:
    """Numbers in a Struct are doubles."""
    if isinstance(value, int | float) and 0 <= value <= MAX_COUNT:
        return int(value)
    return 0
