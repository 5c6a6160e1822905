"""What the floor says, to Redis and to Envoy: bytes into which only what varies is put.

Keys, scripts and arguments are those of ``extproc.stores.reservation_store``; the metadata has the
fields of ``extproc.core.handles``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from extproc.core.handles import NAMESPACE, Profile, duration_text
from extproc.core.reservations import Knowledge, Outcome, State
from extproc.envoy_io.replies import CONTINUE_REQUEST_BODY
from extproc.stores import keys, scripts
from extproc.stores.scripts import load_script
from tests.bench.traffic import WIRE_FORMAT

ENCODING = "o200k_base"
_DEFAULT_OUTPUT_TOKENS, _DEADLINE_MS = 512, 900_000
# Reservation ids are of one length, so that all lengths around them are known.
ID_LENGTH = 32
_ID = "%s"


def _word(text: object) -> str:
    """One word of a command; what it holds is no id, and is taken as it is."""
    plain = str(text)
    return f"${len(plain.encode())}\r\n{plain}\r\n".replace("%", "%%")


def _id_word(before: str = "") -> str:
    return f"${len(before.encode()) + ID_LENGTH}\r\n".replace("%", "%%") + (
        before.replace("%", "%%") + _ID + "\r\n"
    )


@cache
def number_word(number: int) -> bytes:
    """A number as a word of a command. They are few: token counts of some thousands."""
    return _word(number).encode()


@dataclass(slots=True, kw_only=True)
class Templates:
    """Of one service and model. Reserve: id, id, input, cap, length of the request id, request id.
    Settle: id, id, input, output."""

    reserve: bytes
    settle: bytes
    # The fields of the answer that are always the same; ``limits`` are known after the first reply.
    fixed: bytes
    limits: dict[tuple[int, int], bytes]


def templates_of(root: str, model: str, source: str) -> Templates:
    """``source``: who settles."""
    reserve = [
        *map(_word, ("EVALSHA", load_script(scripts.RESERVE).sha, 7, keys.config(root))),
        *map(_word, (keys.rpm_prefix(root), keys.tpm_prefix(root), keys.output_prefix(root))),
        _id_word(keys.reservation_prefix(root)),
        *map(_word, (keys.pending(root), keys.refusals(root))),
        _id_word(),
        "%s%s",
        *map(_word, (_DEFAULT_OUTPUT_TOKENS, _DEADLINE_MS, WIRE_FORMAT, model)),
        "$%d\r\n%s\r\n",
        # No pinned limits, mode mean, no cap of the platform; an owner; no idempotency key.
        *map(_word, ("", "", "", 0, -1, "floor", "", "", "", f"service:{root}")),
    ]
    settle = [
        *map(_word, ("EVALSHA", load_script(scripts.SETTLE).sha, 7, keys.tpm_prefix(root))),
        _id_word(keys.reservation_prefix(root)),
        *map(_word, (keys.pending(root), keys.rpm_prefix(root), keys.output_prefix(root))),
        *map(_word, (keys.output_model_prefix(root, model), keys.review(root))),
        _id_word(),
        _word(int(Knowledge.KNOWN)),
        "%s%s",
        *map(_word, (State.SETTLED, Outcome.COMPLETE, source, 1, "", "")),
    ]
    return Templates(
        reserve=_command(reserve, words=28),
        settle=_command(settle, words=20),
        fixed=entry("root", root) + entry("model", model),
        limits={},
    )


def _command(parts: list[str], *, words: int) -> bytes:
    return (f"*{words}\r\n" + "".join(parts)).encode()


def varint(number: int) -> bytes:
    """A length as protobuf writes it."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag << 3 | 2,)) + varint(len(data)) + data


@cache
def entry_head(key: str, length: int) -> bytes:
    """What stands in a Struct before a text of ``length`` bytes under ``key``."""
    value = b"\x1a" + varint(length)  # Value.string_value
    before = _field(1, key.encode()) + b"\x12" + varint(len(value) + length) + value
    return b"\n" + varint(len(before) + length) + before


def entry(key: str, text: str) -> bytes:
    """A text in a Struct."""
    data = text.encode()
    return entry_head(key, len(data)) + data


def limits_entries(rpm: int, tpm: int) -> bytes:
    """What a root's limits are."""
    return entry("limit_requests", str(rpm)) + entry("limit_tokens", str(tpm))


@cache
def reset_entries(milliseconds: int) -> bytes:
    """When both windows end. Above a second they are said in seconds, of which a minute has 60."""
    text = duration_text(milliseconds)
    return entry("reset_requests", text) + entry("reset_tokens", text)


_CONTINUE: bytes = CONTINUE_REQUEST_BODY.SerializeToString()
_METADATA = 8  # ProcessingResponse.dynamic_metadata


@cache
def reply_head(length: int) -> bytes:
    """An answer of admission up to the entries of our namespace, which have ``length`` bytes."""
    value = b"\x2a" + varint(length)  # Value.struct_value
    before = _field(1, NAMESPACE.encode()) + b"\x12" + varint(len(value) + length) + value
    struct = b"\n" + varint(len(before) + length) + before
    return _CONTINUE + bytes((_METADATA << 3 | 2,)) + varint(len(struct) + length) + struct


def admitted_answer(
    templates: Templates, reservation_id: bytes, handle: bytes, reply: Sequence[Any]
) -> bytes:
    """The whole answer, from the reply of the reserve script (its numbers begin at index 2)."""
    rpm, rpm_left, tpm, tpm_left, reset_ms = reply[4:9]
    limits = templates.limits.get((rpm, tpm))
    if limits is None:
        limits = templates.limits[rpm, tpm] = limits_entries(rpm, tpm)
    requests_left, tokens_left = b"%d" % rpm_left, b"%d" % tpm_left
    if reset_ms >= 1000:
        reset_ms += -reset_ms % 1000
    fields = b"".join(
        (
            templates.fixed,
            limits,
            _ID_HEAD,
            reservation_id,
            entry_head("hdl", len(handle)),
            handle,
            entry_head("remaining_requests", len(requests_left)),
            requests_left,
            entry_head("remaining_tokens", len(tokens_left)),
            tokens_left,
            reset_entries(reset_ms),
        )
    )
    return reply_head(len(fields)) + fields


_ID_HEAD = entry_head("rid", ID_LENGTH)


def handle_text(
    profile: Profile, *, input_tokens: int, reserved_tokens: int, request_id: str
) -> bytes:
    """The rest of the handle in one text, as ``Handle.to_fields`` writes it."""
    return (
        f"{WIRE_FORMAT}|{input_tokens}|{reserved_tokens}|{ENCODING}|0|100|0|{profile}|{request_id}"
    ).encode()
