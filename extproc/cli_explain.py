"""`tokenweir explain`: why a request was, or would be, refused; as text or JSON."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from extproc.core.buckets import BucketKind, Period, Unit
from extproc.core.errors import SettingsError
from extproc.core.explain import (
    Asked,
    LimitReport,
    ReservationReport,
    RootHolds,
    SubjectReport,
)
from extproc.core.explain_rules import policy_word
from extproc.core.ids import is_valid_id
from extproc.core.policies import Descriptor, OnExceed, Scope
from extproc.settings import Settings

EXIT_NOT_FOUND = 1
# A person waits here, not a request.
_TIMEOUT_MS = 3000
_ID_RULE = "1 to 128 letters, digits, '.', '_', ':' or '-'"

_UNITS = {
    Unit.REQUESTS: "requests",
    Unit.INPUT: "input tokens",
    Unit.OUTPUT: "output tokens",
    Unit.TOTAL: "tokens",
    Unit.COST: "micro-USD",
    Unit.SLOT: "open requests",
}


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tokenweir explain`."""
    parser.add_argument("id", nargs="?", metavar="ID", help="a reservation, or Envoy's request id")
    parser.add_argument("--subject", metavar="SCOPE=VALUE,...", help="who asks: tenant=a,user=b")
    parser.add_argument("--model", help="the model that is asked for, with --subject")
    parser.add_argument("--service", help="the service that is asked, with --subject")
    parser.add_argument(
        "--root", help="whose limits: by default the service, or else the tenant of --subject"
    )
    parser.add_argument("--tokens", type=int, help="tokens to reserve, default 1")
    parser.add_argument("--output-tokens", type=int, help="how many of them are expected output")
    parser.add_argument("--cost-micros", type=int, help="what they cost in micro-USD, default 0")
    parser.add_argument("--json", action="store_true", help="print JSON")


async def run_explain_command(args: argparse.Namespace, settings: Settings) -> int:
    """Look and print; 1 when there is no such reservation. Raises SettingsError for wrong usage."""
    from extproc.stores.client import open_client
    from extproc.stores.explain import explain_subject
    from extproc.stores.explain_records import explain_reservation
    from extproc.stores.sql import Database

    question = _question(args)
    database = Database(url=settings.database.url, threads=1, timeout_ms=_TIMEOUT_MS)
    redis = open_client(
        url=settings.redis.url,
        cluster=settings.redis.cluster,
        timeout_ms=_TIMEOUT_MS,
        max_connections=1,
    )
    try:
        if isinstance(question, str):
            found = await explain_reservation(redis, database, root=args.root, wanted_id=question)
            if not found:
                print(
                    f"no record of {_shown(question)} at root {args.root}: a refused request has "
                    "none (try --subject), and one that has ended is kept for 15 minutes",
                    file=sys.stderr,
                )
                return EXIT_NOT_FOUND
            _print(args, [asdict(one) for one in found], *map(_reservation_lines, found))
        else:
            descriptor, asked = question
            report = await explain_subject(redis, database, descriptor=descriptor, asked=asked)
            _print(args, asdict(report), _subject_lines(report))
    finally:
        await redis.close()
        await database.close()
    return 0


def _print(args: argparse.Namespace, plain: object, *texts: Iterator[str]) -> None:
    if args.json:
        print(json.dumps(plain, default=_plain, indent=2))
    else:
        print("\n\n".join("\n".join(lines) for lines in texts))


def _plain(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def _question(args: argparse.Namespace) -> str | tuple[Descriptor, Asked]:
    """A reservation's or request's id, or a subject and what it asks."""
    only_subject = ("model", "service", "tokens", "output_tokens", "cost_micros")
    if (args.id is None) == (args.subject is None and args.service is None):
        raise SettingsError("explain", "give an ID, or --subject and --model")
    if args.id is not None:
        for name in only_subject:
            if getattr(args, name) is not None:
                raise SettingsError(f"--{name.replace('_', '-')}", "goes with --subject")
        if args.root is None:
            raise SettingsError("--root", "is needed with an ID")
        _check_id("--root", args.root)
        return str(args.id)
    if args.model is None:
        raise SettingsError("--model", "is needed with --subject")
    values = _subject(args.subject)
    if args.service is not None:
        values[Scope.SERVICE] = args.service
    root = args.root or values.get(Scope.SERVICE) or values.get(Scope.TENANT)
    if root is None:
        raise SettingsError("--root", "is needed for a subject without service or tenant")
    _check_id("--root", root)
    values.setdefault(Scope.SERVICE, root)  # as at admission
    given = {
        name: getattr(args, name)
        for name in ("tokens", "output_tokens", "cost_micros")
        if getattr(args, name) is not None
    }
    try:
        asked = Asked(**given)
    except ValueError as error:
        raise SettingsError("explain", str(error)) from error
    return Descriptor(root=root, values=values, requested_model=args.model), asked


def _subject(text: str | None) -> dict[Scope, str]:
    values: dict[Scope, str] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name not in list(Scope) or not value:
            scopes = ", ".join(Scope)
            raise SettingsError("--subject", f"SCOPE=VALUE,... of {scopes}; got {part!r}")
        values[Scope(name)] = value
    return values


def _check_id(key: str, value: str) -> None:
    if not is_valid_id(value):
        raise SettingsError(key, _ID_RULE)


def _subject_lines(report: SubjectReport) -> Iterator[str]:
    view = f", policies {report.version}" if report.version else ""
    origin = "in force" if report.cached else "from SQL, not cached yet"
    yield f"root {report.root}: {report.state}{view} ({origin})"
    if report.sql_differs:
        yield "  SQL says otherwise: was SQL changed without `DEL config:{ROOT}`?"
    who = ", ".join(f"{scope} {_shown(value)}" for scope, value in report.subject.items())
    asked = report.asked
    output = "" if asked.output_tokens is None else f", {asked.output_tokens} of them output"
    cost = f", {asked.cost_micros} micro-USD" if asked.cost_micros else ""
    yield (
        f"request: {who or 'nobody'}, model {_shown(report.model)}, "
        f"{asked.tokens} tokens{output}{cost}"
    )
    if Scope.PROVIDER not in report.subject:
        yield "  no provider=... in the subject: limits of providers are left out"
    if report.blocked_by is not None:
        block = report.blocked_by
        until = "for ever" if block.until is None else f"until {_time(block.until)}"
        reason = f": {_shown(block.reason)}" if block.reason else ""
        yield f"blocked: {block.scope} {_shown(block.value)} {until}{reason}"
    because = f" ({report.binding})" if report.binding else ""
    at = f", at {_time(report.fits_at)}" if report.fits_in_ms and report.fits_at else ""
    yield f"would fit: {_wait(report.fits_in_ms)}{at}{because}"
    yield f"limits: {len(report.limits) or 'none apply'}"
    for limit in report.limits:
        yield from _limit_lines(limit, root=report.root)
    for holds in report.holds:
        yield from _hold_lines(holds)


def _limit_lines(limit: LimitReport, *, root: str) -> Iterator[str]:
    where = f"{limit.scope} {_shown(limit.value)}"
    if limit.subject != f"{limit.scope}:{limit.value}":
        where += f", here {_shown(limit.subject)}"
    model = f", model {_shown(limit.model)}" if limit.model != "*" else ""
    across = f", across roots at {limit.root}" if limit.root != root else ""
    mode = limit.mode.value if limit.on_exceed is OnExceed.REFUSE else f"{limit.mode}, record only"
    yield f"  {policy_word(limit.policy, limit.version)} {limit.dimension}: {where}{model}{across}"
    yield f"      {_algorithm(limit)}, {mode}"
    other = ""
    if limit.limit != limit.policy_limit:
        until = "" if limit.override_until is None else f" until {_time(limit.override_until)}"
        other = f" (override{until}; else {limit.policy_limit})"
    held = "" if limit.held is None else f", held {limit.held}"
    latest = " at the latest" if limit.algorithm is BucketKind.SLOTS and limit.fits_in_ms else ""
    voice = "" if limit.refuses else ", but would not refuse"
    yield f"      limit {limit.limit}{other}, used {limit.used}{held}, left {limit.remaining}"
    fits = f"{_wait(limit.fits_in_ms)}{latest}{voice}"
    yield f"      another {limit.asked} {_UNITS[limit.unit]} fit: {fits}"


def _algorithm(limit: LimitReport) -> str:
    match limit.algorithm:
        case BucketKind.SLIDING:
            return f"sliding window of {limit.window_seconds} s"
        case BucketKind.BUCKET:
            return f"token bucket of {limit.burst}, refilled by the limit a minute"
        case BucketKind.QUOTA:
            return f"quota of the {'contract ' * (limit.period is Period.CYCLE)}{limit.period}"
        case BucketKind.SLOTS:
            return "open at the same time"
        case BucketKind.MINUTE:
            return "minute by the clock"


def _hold_lines(holds: RootHolds) -> Iterator[str]:
    more = f", the first {len(holds.first)}" if holds.open > len(holds.first) else ""
    yield f"open at {holds.root}: {holds.open}{more}"
    for hold in holds.first:
        age = "?" if hold.age_ms is None else _span(hold.age_ms)
        late = ", overdue" if hold.overdue else ""
        yield (
            f"  {hold.reservation_id}: {hold.reserved_tokens} tokens, {_shown(hold.model)}, "
            f"for {age}, until {_time(hold.deadline)} at most{late}"
        )


def _reservation_lines(report: ReservationReport) -> Iterator[str]:
    yield f"reservation {report.reservation_id} at root {report.root}"
    rows: Mapping[str, str] = {
        "request": _shown(report.request_id),
        "model": f"{_shown(report.model)} ({report.wire_format})" if report.model else "",
        "state": report.state,
        "outcome": f"{report.outcome} (said by {report.source})" if report.outcome else "",
        "knowledge": report.knowledge,
        "reserved": _amount(report.reserved_tokens, report.reserved_cost_micros),
        "charged": _amount(report.charged_tokens, report.charged_cost_micros),
        "admitted": _maybe(report.admitted_at) or "never: it was released first",
        "deadline": _maybe(report.deadline),
        "ended": _maybe(report.ended_at),
        "kept until": _maybe(report.forgotten_at),
        "admitted by": ", ".join(report.policies),
    }
    for name, value in rows.items():
        if value:
            yield f"  {name + ':':<12} {value}"
    for taken in report.taken:
        period = f" {taken.period}" if taken.period else ""
        shadow = ", would have refused (shadow)" if taken.shadow_refused else ""
        yield (
            f"    {taken.label} for {_shown(taken.subject)}, {taken.algorithm}{period}: "
            f"reserved {taken.reserved}, charged {taken.charged} {_UNITS[taken.unit]}{shadow}"
        )


def _amount(tokens: int, cost: int | None) -> str:
    return f"{tokens} tokens" + ("" if cost is None else f", {cost} micro-USD")


def _wait(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "never"
    return f"in {_span(milliseconds)}" if milliseconds else "now"


def _span(milliseconds: int) -> str:
    """Days to seconds, rounded up, so that whoever waits is not early."""
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    left, parts = -(-milliseconds // 1000), []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def _maybe(moment: datetime | None) -> str:
    return "" if moment is None else _time(moment)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _shown(text: str) -> str:
    """A client's text, without what would speak to the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
