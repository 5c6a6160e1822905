"""Reads a usage event, as ``lua/include/event.lua`` writes it, into a row of the ledger.

Thousands are read a second, so one look tells whether an event is plain: such a one has nothing
that the checks could find. Any other is checked field by field, so that the error names the field.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

from extproc.core.ids import ACROSS_PREFIX, is_root_id, is_valid_id
from extproc.core.ledger import KIND_FIELDS, LedgerEntry, UsageEvent
from extproc.core.reservations import Knowledge, Outcome, Source, State
from extproc.core.subjects import MAX_BYTES

VERSION = "1"
# Redis' sums end here, where doubles are exact; differences may be as large either way.
MAX_NUMBER = 2**53
_MAX_TEXT = 256
_MAX_WORD = 64
_MAX_MS = 253_402_300_799_999  # the last of the year 9999
_NUMBER = re.compile(r"-?[0-9]{1,16}", re.ASCII)
_KIND = re.compile(r"([a-z0-9_]{1,32}) (-?[0-9]{1,16})", re.ASCII)
_MINUTE = re.compile(r"([0-9]{12})?", re.ASCII)
# Version, revision, five amounts, two times, minute and reservation id, all well within their
# bounds: nine digits are less than 2**31, fifteen less than 2**53, fourteen before the year 9999.
_PLAIN = re.compile(
    r"1 [1-9][0-9]{0,8}(?: -?[0-9]{1,15}){3}(?: [0-9]{1,15}){2}(?: [0-9]{1,14}){2}"
    r" (?:[0-9]{12})? [A-Za-z0-9._:-]{1,128}",
    re.ASCII,
)
_COMPARED = itemgetter(
    *("v", "revision", "input", "output", "cost", "reserved", "reserved_cost"),
    *("at", "settled", "minute", "reservation_id"),
)
_SHARED = itemgetter("root", "who", "model", "wire_format", "prices", "price_version")
_NAMES = itemgetter(
    *("request_id", "wire_format", "reservation_id", "revision", "root", "who", "model")
)
_AMOUNTS = itemgetter(
    *("input", "output", "reserved", "reserved_cost", "cost", "prices", "price_version")
)
_ENDS = itemgetter("source", "rank", "outcome", "state", "at", "settled", "minute")
_KIND_AT = {name.removesuffix("_tokens"): at for at, name in enumerate(KIND_FIELDS)}
_NO_KINDS: tuple[int | None, ...] = (None,) * len(KIND_FIELDS)
_KNOWLEDGE = {str(int(one)): one.name.lower() for one in Knowledge if one is not Knowledge.NOTHING}
_SOURCES, _OUTCOMES, _STATES = (
    frozenset(one.value for one in words) for words in (Source, Outcome, State)
)


class LedgerEventError(ValueError):
    """A usage event that cannot be a row of the ledger; says which field is wrong."""


def entry_of(event: UsageEvent, *, provider_of: Callable[[str], str]) -> LedgerEntry:
    """Read an event; ``provider_of`` names the provider of a wire format. Raises LedgerEventError
    for one that no script of ours can have written."""
    given = event.fields
    if not is_plain(event):
        check(event)
    request_id, endpoint, reservation_id, revision, root, subject, model = _NAMES(given)
    input_tokens, output_tokens, reserved, reserved_cost, cost, prices, version = _AMOUNTS(given)
    source, rank, outcome, status, at, settled, minute = _ENDS(given)
    return LedgerEntry._make(
        (
            request_id,
            endpoint,
            reservation_id,
            int(revision),
            root,
            subject,
            model,
            provider_of(endpoint),
            "",
            int(input_tokens),
            int(output_tokens),
            *_kinds(given.get("kinds", "")),
            int(reserved),
            int(reserved_cost),
            int(cost),
            prices,
            version,
            source,
            _KNOWLEDGE[rank],
            outcome,
            status,
            int(at),
            int(settled),
            minute,
        )
    )


def is_plain(event: UsageEvent) -> bool:
    """True only where ``check`` would find nothing; False where it has to be asked."""
    given = event.fields
    try:
        return (
            given["root"] == event.root
            and _PLAIN.fullmatch(" ".join(_COMPARED(given))) is not None
            and given["source"] in _SOURCES
            and given["outcome"] in _OUTCOMES
            and given["state"] in _STATES
            and given["rank"] in _KNOWLEDGE
            and (request_id := given["request_id"]).isascii()
            and len(request_id) <= _MAX_TEXT
            and _are_plain(_SHARED(given))
        )
    except KeyError:
        return False


@lru_cache(maxsize=4096)
def _are_plain(texts: tuple[str, ...]) -> bool:
    """The texts that many events share; looked at once."""
    root, subject, model, endpoint, prices, price_version = texts
    return (
        is_root_id(root)
        and all(map(str.isascii, texts))
        and len(subject) <= MAX_BYTES
        and max(len(model), len(prices)) <= _MAX_TEXT
        and max(len(endpoint), len(price_version)) <= _MAX_WORD
    )


def check(event: UsageEvent) -> None:
    """Raise LedgerEventError for the first field, kinds apart, that is missing or wrong."""
    given = event.fields
    if (version := given.get("v")) != VERSION:
        raise LedgerEventError(f"v: {version!r:.40} is not {VERSION}, which is all that is known")
    root = _text(given, "root")
    if root != event.root or not is_root_id(root):
        hint = " (shared)" if root.startswith(ACROSS_PREFIX) else ""
        raise LedgerEventError(f"root: {root!r:.140}{hint} in the stream of {event.root!r:.140}")
    reservation_id = _text(given, "reservation_id")
    if not is_valid_id(reservation_id):
        raise LedgerEventError(f"reservation_id: {reservation_id!r:.140} is no id")
    minute = _text(given, "minute")
    if not _MINUTE.fullmatch(minute):
        raise LedgerEventError(f"minute: {minute!r:.40}")
    if not _text(given, "who", most=MAX_BYTES).isascii():
        raise LedgerEventError("who: is not ASCII")
    for name in ("request_id", "model", "prices"):
        _text(given, name)
    for name in ("wire_format", "price_version"):
        _text(given, name, most=_MAX_WORD)
    for name in ("input", "output", "cost"):
        _number(given, name)
    for name in ("reserved", "reserved_cost"):
        _number(given, name, least=0)
    for name in ("at", "settled"):
        _number(given, name, least=0, most=_MAX_MS)
    _number(given, "revision", least=1, most=2**31 - 1)
    _word(given, "source", _SOURCES)
    _word(given, "outcome", _OUTCOMES)
    _word(given, "state", _STATES)
    _word(given, "rank", _KNOWLEDGE.keys())


def _text(given: Mapping[str, str], name: str, *, most: int = _MAX_TEXT) -> str:
    text = given.get(name)
    if text is None:
        raise LedgerEventError(f"{name}: is missing")
    if len(text) > most:
        raise LedgerEventError(f"{name}: {len(text)} characters, {most} at most")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LedgerEventError(f"{name}: is no UTF-8") from None
    return text


def _number(
    given: Mapping[str, str], name: str, *, least: int = -MAX_NUMBER, most: int = MAX_NUMBER
) -> None:
    text = given.get(name, "")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise LedgerEventError(f"{name}: {text!r:.40} is no number from {least} to {most}")


def _word(given: Mapping[str, str], name: str, words: Collection[str]) -> None:
    text = given.get(name, "")
    if text not in words:
        raise LedgerEventError(f"{name}: {text!r:.40} is not known")


def _kinds(text: str) -> Sequence[int | None]:
    if not text:
        return _NO_KINDS
    kinds = list(_NO_KINDS)
    for part in text.split(", "):
        found = _KIND.fullmatch(part)
        at = None if found is None else _KIND_AT.get(found[1])
        if found is None or at is None or abs(int(found[2])) > MAX_NUMBER:
            raise LedgerEventError(f"kinds: {part!r:.60} is not known")
        kinds[at] = int(found[2])
    return kinds
