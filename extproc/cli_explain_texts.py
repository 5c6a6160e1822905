"""The answers of `tokenweir explain` as text for people."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from extproc.core.buckets import BucketKind, Period, Unit
from extproc.core.explain import (
    LimitReport,
    RefusalReport,
    RefusingLimit,
    ReservationReport,
    RootHolds,
    SubjectReport,
    Unreadable,
)
from extproc.core.explain_rules import policy_word
from extproc.core.ids import ACROSS_PREFIX, is_valid_id
from extproc.core.policies import Mode, OnExceed, Scope
from extproc.core.resolve import BLOCK_LABEL

_UNITS = {
    Unit.REQUESTS: "requests",
    Unit.INPUT: "input tokens",
    Unit.OUTPUT: "output tokens",
    Unit.TOTAL: "tokens",
    Unit.COST: "micro-USD",
    Unit.SLOT: "open requests",
}
_UNPRICED = "the model has no price ([[prices]] of the settings), so no limit of cost admits it"


def subject_lines(report: SubjectReport, *, hints: Iterable[str] = ()) -> Iterator[str]:
    """What decides about one kind of request, and what it says now; ``hints``: what was assumed."""
    view = f", policies {report.version}" if report.version else ""
    origin = "in force" if report.cached else "from SQL, not cached yet"
    yield f"root {report.root}: {report.state}{view} ({origin})"
    if report.sql_differs:
        yield "  SQL says otherwise: was SQL changed without `DEL config:{ROOT}`?"
    who = ", ".join(f"{scope} {shown(value)}" for scope, value in report.subject.items())
    asked = report.asked
    output = "" if asked.output_tokens is None else f", {asked.output_tokens} of them output"
    cost = f", {asked.cost_micros} micro-USD" if asked.cost_micros else ""
    yield (
        f"request: {who or 'nobody'}, model {shown(report.model)}, "
        f"{asked.tokens} tokens{output}{cost}"
    )
    for hint in hints:
        yield f"  {hint}"
    if report.blocked_by is not None:
        block = report.blocked_by
        until = "for ever" if block.until is None else f"until {_time(block.until)}"
        reason = f": {shown(block.reason)}" if block.reason else ""
        yield f"blocked: {block.scope} {shown(block.value)} {until}{reason}"
    because = f" ({report.binding})" if report.binding else ""
    at = f", at {_time(report.fits_at)}" if report.fits_in_ms and report.fits_at else ""
    yield f"would fit: {_wait(report.fits_in_ms)}{_at_latest(report)}{at}{because}"
    if not asked.is_priced and any(one.unit is Unit.COST and one.refuses for one in report.limits):
        yield f"  {_UNPRICED}"
    yield f"limits: {len(report.limits) or 'none apply'}"
    for limit in report.limits:
        yield from _limit_lines(limit, root=report.root)
    for holds in report.holds:
        yield from _hold_lines(holds)
    yield f"last refusals, of anybody: {len(report.refusals) or 'none known'}"
    yield from map(_last_refusal, report.refusals)


def _limit_lines(limit: LimitReport, *, root: str) -> Iterator[str]:
    where = f"{limit.scope} {shown(limit.value)}"
    if limit.subject != f"{limit.scope}:{limit.value}":
        where += f", here {shown(limit.subject)}"
    model = f", model {shown(limit.model)}" if limit.model != "*" else ""
    across = f", across roots at {limit.root}" if limit.root != root else ""
    mode = limit.mode.value
    if limit.on_exceed is OnExceed.RECORD:
        mode = "record only" if limit.mode is Mode.ENFORCE else f"{limit.mode}, record only"
    yield f"  {policy_word(limit.policy, limit.version)} {limit.dimension}: {where}{model}{across}"
    yield f"      {_algorithm(limit)}, {mode}"
    other = ""
    if limit.limit != limit.policy_limit:
        until = "" if limit.override_until is None else f" until {_time(limit.override_until)}"
        other = f" (override{until}; else {limit.policy_limit})"
    held = "" if limit.held is None else f", held {limit.held}"
    latest = " at the latest" if limit.algorithm is BucketKind.SLOTS and limit.fits_in_ms else ""
    size = f"limit {limit.limit}{other}"
    if limit.burst is not None:
        size = f"burst {limit.burst}, refilled by {limit.limit}{other} a minute"
    yield f"      {size}, used {limit.used}{held}, left {limit.remaining}"
    voice = "" if limit.refuses or limit.fits_in_ms == 0 else " (but this limit refuses nothing)"
    fits = f"{_wait(limit.fits_in_ms)}{latest}{voice}"
    yield f"      {_another(limit.asked, limit.unit)}: {fits}"


def _another(count: int, unit: Unit) -> str:
    if count == 1:
        return (
            f"another {_UNITS[unit].replace('requests', 'request').replace('tokens', 'token')} fits"
        )
    return f"another {count} {_UNITS[unit]} fit"


def _at_latest(report: SubjectReport) -> str:
    """Places are free when streams end; only the latest moment of it is known."""
    waits = [one for one in report.limits if one.label == report.binding]
    is_slots = any(one.algorithm is BucketKind.SLOTS for one in waits)
    return " at the latest" if is_slots and report.fits_in_ms else ""


def _algorithm(limit: LimitReport) -> str:
    match limit.algorithm:
        case BucketKind.SLIDING:
            return f"sliding window of {limit.window_seconds} s"
        case BucketKind.BUCKET:
            return "token bucket"
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
        if isinstance(hold, Unreadable):
            yield f"  {shown(hold.reservation_id)}: cannot be read: {shown(hold.unreadable)}"
            continue
        age = "?" if hold.age_ms is None else _span(hold.age_ms)
        late = ", overdue" if hold.overdue else ""
        yield (
            f"  {shown(hold.reservation_id)}: {hold.reserved_tokens} tokens, {shown(hold.model)}, "
            f"for {age}, until {_time(hold.deadline)} at most{late}"
        )


def refusal_lines(report: RefusalReport) -> Iterator[str]:
    """One request that was refused."""
    yield f"refused: request {shown(report.request_id)} at root {report.root}{_whose(report)}"
    rows = {
        "when": f"{_time(report.refused_at)} ({_span(_since(report.refused_at, report.at))} ago)",
        "reservation": shown(report.reservation_id),
        "model": shown(report.model),
        "who": ", ".join(f"{scope} {shown(value)}" for scope, value in report.subject.items()),
        "asked": _asked(report),
    }
    yield from _rows(rows)
    count = len(report.limits) + report.more
    yield f"  refused by{f' {count} limits, the binding one first' if count > 1 else ''}:"
    for limit in report.limits:
        yield from _refusing_lines(limit, report)
    if report.more:
        yield f"    and {report.more} more"
    yield f"  it would meet now: {_command(report)}"
    if missing := [*report.hidden, *_untellable(report)]:
        yield f"    (add what is not told here: {', '.join(missing)})"


def _whose(report: RefusalReport) -> str:
    """Whose request it was, where the root does not say it."""
    service = report.subject.get(Scope.SERVICE)
    if service is None or not report.root.startswith(ACROSS_PREFIX):
        return ""
    return f", service {shown(service)}"


def _asked(report: RefusalReport) -> str:
    asked = report.asked
    cost = f", {asked.cost_micros} micro-USD" if asked.cost_micros else ""
    return f"{asked.tokens} tokens, {asked.output_tokens} of them output{cost}"


def _limit_name(limit: RefusingLimit) -> str:
    if limit.label.startswith(BLOCK_LABEL):
        return f"a block of this {limit.label.removeprefix(BLOCK_LABEL)}"
    policy, _, dimension = limit.label.partition("/")
    return f"{policy_word(policy, limit.version)} {dimension} for {shown(limit.subject)}"


def _refusing_lines(limit: RefusingLimit, report: RefusalReport) -> Iterator[str]:
    frees = _frees(limit, now=report.at)
    if limit.label.startswith(BLOCK_LABEL):
        yield f"    {_limit_name(limit)}: {frees}"
        return
    period = f" {limit.period}" if limit.period else ""
    yield f"    {_limit_name(limit)}, {limit.algorithm}{period}"
    if limit.unit is Unit.COST and not report.asked.is_priced:
        yield f"      {_UNPRICED}"
        return
    size = f"{limit.limit}" if limit.burst is None else f"a burst of {limit.burst}"
    left = f"{limit.remaining} of {size} {_UNITS[limit.unit]}"
    if limit.burst is not None:
        left += f", refilled by {limit.limit} a minute"
    yield f"      asked {limit.asked}, left {left}; {frees}"


def _frees(limit: RefusingLimit, *, now: datetime) -> str:
    """When what was asked would fit, as was known when it was refused."""
    if limit.label.startswith(BLOCK_LABEL):
        return "refused until it ends or is lifted"
    if limit.frees_at is None:
        return "never fits"
    left = _since(now, limit.frees_at)
    verb = "worth a try" if limit.algorithm is BucketKind.SLOTS else "fits"
    return f"{verb} from {_time(limit.frees_at)} ({f'in {_span(left)}' if left > 0 else 'passed'})"


def _command(report: RefusalReport) -> str:
    """What to ask next, with what is known of the request."""
    asked = report.asked
    # A root of limits that all share does not say whose request it was.
    root = "SERVICE" if report.root.startswith(ACROSS_PREFIX) else report.root
    root = report.subject.get(Scope.SERVICE, root)
    left_out = {Scope.SERVICE, *_untellable(report)}
    who = [f"{scope}={value}" for scope, value in report.subject.items() if scope not in left_out]
    if not report.subject:  # a note of an older release: only what its counters are called
        for limit in report.limits:
            scope, _, value = limit.subject.partition(":")
            if scope in set(Scope) - {Scope.SERVICE} and is_valid_id(value) and value[0] != ":":
                who.append(f"{scope}={value}")
    words = ["tokenweir", "explain", "--service", root]
    if who:
        words += ["--subject", ",".join(dict.fromkeys(who))]
    words += ["--model", shown(report.model), "--tokens", str(asked.tokens)]
    words += ["--output-tokens", str(asked.output_tokens)]
    if asked.cost_micros:
        words += ["--cost-micros", str(asked.cost_micros)]
    return shlex.join(words)


def _untellable(report: RefusalReport) -> list[Scope]:
    """Scopes whose value no command could repeat."""
    return [
        scope for scope, value in report.subject.items() if shown(value) != value or "," in value
    ]


def _last_refusal(report: RefusalReport) -> str:
    others = len(report.limits) - 1 + report.more
    also = f" and {others} more" if others else ""
    binding = report.limits[0]
    return (
        f"  {_time(report.refused_at)} {shown(report.request_id)}{_whose(report)}: "
        f"{report.asked.tokens} tokens, "
        f"{shown(report.model)}, by {_limit_name(binding)}{also}, {_frees(binding, now=report.at)}"
    )


def reservation_lines(report: ReservationReport | Unreadable) -> Iterator[str]:
    """What became of one reservation."""
    yield f"reservation {shown(report.reservation_id)} at root {shown(report.root)}"
    if isinstance(report, Unreadable):
        yield f"  its record cannot be read: {shown(report.unreadable)}"
        return
    rows = {
        "request": shown(report.request_id),
        "model": f"{shown(report.model)} ({shown(report.wire_format)})" if report.model else "",
        "state": shown(report.state),
        "outcome": shown(f"{report.outcome} (said by {report.source})") if report.outcome else "",
        "knowledge": report.knowledge,
        "reserved": _amount(report.reserved_tokens, report.reserved_cost_micros),
        "charged": _amount(report.charged_tokens, report.charged_cost_micros),
        "of which": shown(report.usage_parts),
        "admitted": _maybe(report.admitted_at) or "never: it was released first",
        "deadline": _maybe(report.deadline),
        "ended": _maybe(report.ended_at),
        "kept until": _maybe(report.forgotten_at),
        "admitted by": shown(", ".join(report.policies)),
    }
    yield from _rows(rows)
    for taken in report.taken:
        period = f" {shown(taken.period)}" if taken.period else ""
        shadow = ", would have refused (shadow)" if taken.shadow_refused else ""
        yield (
            f"    {shown(taken.label)} for {shown(taken.subject)}, {taken.algorithm}{period}: "
            f"reserved {taken.reserved}, charged {taken.charged} {_UNITS[taken.unit]}{shadow}"
        )


def _rows(rows: Mapping[str, str]) -> Iterator[str]:
    for name, value in rows.items():
        if value:
            yield f"  {name + ':':<12} {value}"


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


def _since(earlier: datetime, later: datetime) -> int:
    return (later - earlier) // timedelta(milliseconds=1)


def _maybe(moment: datetime | None) -> str:
    return "" if moment is None else _time(moment)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown(text: str) -> str:
    """A client's text, without what would speak to the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
