"""Bills, reconciliations and replays as text: the same input gives the same bytes.

Amounts are micro-USD; ``usd`` beside them is the same number with a point.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Any

from extproc.core.bills import Bill
from extproc.core.reconcile import Difference, Reconciliation
from extproc.core.replay import Replay

# A spreadsheet would take a cell that begins so for a formula. Source: OWASP, CSV injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_LINE = ("day", "model", "price version", "class", "requests", "tokens", "micro-USD", "USD")


def usd(micros: int) -> str:
    """Exact: 1234567 is 1.234567."""
    sign = "-" if micros < 0 else ""
    whole, rest = divmod(abs(micros), 1_000_000)
    return f"{sign}{whole}.{rest:06}"


def bill_table(bill: Bill) -> str:
    """For people."""
    parts = [
        f"bill of {safe(bill.tenant)}",
        f"from {_time(bill.start)} to {_time(bill.end)}, days in {bill.zone}",
        "",
        _table([_LINE, *_bill_rows(bill)]),
        "",
        f"requests {bill.requests}",
        f"total    {usd(bill.total_micros)} USD",
    ]
    if bill.computed_micros is None:
        parts.append("not computed again: no prices were given")
    else:
        parts.append(f"computed {usd(bill.computed_micros)} USD from tokens and price versions")
    parts += [f"of it {safe(name) or '-'} {usd(cost)}" for name, cost in bill.by_knowledge.items()]
    if bill.discrepancies:
        head = ("day", "request", "reservation", "model", "price version", "charged", "computed")
        rows = [
            (
                each.day.isoformat(),
                safe(each.request_id),
                safe(each.reservation_id),
                safe(each.model),
                safe(each.price_version) or "-",
                usd(each.charged_micros),
                "no price" if each.computed_micros is None else usd(each.computed_micros),
            )
            for each in bill.discrepancies
        ]
        parts += ["", f"discrepancies: {len(rows)}", _table([head, *rows])]
    return "\n".join(parts) + "\n"


def bill_csv(bill: Bill) -> str:
    """For spreadsheets: the lines, then the total. Texts cannot become formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    names = ("day", "model", "price_version", "class", "requests", "tokens", "cost_micros", "usd")
    writer.writerow(names)
    for line in bill.lines:
        writer.writerow(
            (
                line.day.isoformat(),
                cell(line.model),
                cell(line.price_version),
                cell(line.token_class),
                line.requests,
                line.tokens,
                line.cost_micros,
                usd(line.cost_micros),
            )
        )
    total = bill.total_micros
    writer.writerow(("total", "", "", "", bill.requests, "", total, usd(total)))
    return out.getvalue()


def as_json(value: Bill | Reconciliation | Replay) -> str:
    """For programs: the fields as they are, and what is derived of them."""
    plain = asdict(value)
    if isinstance(value, Bill):
        for each, found in zip(plain["discrepancies"], value.discrepancies, strict=True):
            each["difference_micros"] = found.difference_micros
    if isinstance(value, Reconciliation):
        for name in ("groups", "totals"):
            for each, told in zip(plain[name], getattr(value, name), strict=True):
                each["difference"] = told.difference
    return json.dumps(plain, default=_plain, indent=2) + "\n"


def reconciliation_table(found: Reconciliation, *, shows_all: bool) -> str:
    """For people: what is not tolerated, or everything, and the totals."""
    head = (*found.by, "measure", "ledger", "export", "difference", "")
    shown = found.groups if shows_all else found.beyond
    empty = ("total",) + ("",) * (len(found.by) - 1)
    rows = [_difference(each.group, each) for each in shown]
    rows += [_difference(empty[: len(found.by)], each) for each in found.totals]
    last = f"{len(found.beyond)} of {len(found.groups)} sums differ beyond the tolerance"
    return f"{_table([head, *rows])}\n\n{last}\n"


def replay_table(done: Replay) -> str:
    """For people."""
    head = ("rule", "subject", "", "requests", "tokens", "USD")
    rows = [
        (
            rule.label,
            safe(rule.subject),
            "refuses" if rule.refuses else "only records",
            str(rule.requests),
            str(rule.tokens),
            usd(rule.cost_micros),
        )
        for rule in done.rules
    ]
    text = f"{done.refused} of {done.requests} requests would have been refused"
    parts = [f"{text}, {usd(done.refused_cost_micros)} USD"]
    if rows:
        parts += ["", _table([head, *rows])]
    if done.refusals:
        first = ("admitted", "root", "request", "model", "refused by")
        told = [
            (
                _milliseconds(each.row.admitted_at_ms),
                each.row.root,
                safe(each.row.request_id),
                safe(each.row.model),
                ", ".join(each.labels),
            )
            for each in done.refusals
        ]
        parts += ["", f"the first {len(told)}:", _table([first, *told])]
    parts += [
        f"\n{count} requests had a value of {scope} that the ledger does not tell: "
        "policies about it were not asked"
        for scope, count in done.unseen.items()
    ]
    return "\n".join(parts) + "\n"


def cell(text: str) -> str:
    """A text that no spreadsheet computes."""
    shown = safe(text)
    return f"'{shown}" if text.startswith(_FORMULA) or shown.startswith(_FORMULA) else shown


def safe(text: str) -> str:
    """A text that cannot steer a terminal, and can be encoded."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _bill_rows(bill: Bill) -> Iterable[tuple[str, ...]]:
    for line in bill.lines:
        yield (
            line.day.isoformat(),
            safe(line.model),
            safe(line.price_version) or "-",
            safe(line.token_class),
            str(line.requests),
            str(line.tokens),
            str(line.cost_micros),
            usd(line.cost_micros),
        )


def _difference(group: Sequence[str], told: Difference) -> tuple[str, ...]:
    numbers = (str(told.ledger), str(told.export), f"{told.difference:+}")
    mark = "" if told.is_tolerated else "!"
    return (*(safe(value) or "-" for value in group), told.measure, *numbers, mark)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            text.rjust(width) if _is_number(text) else text.ljust(width)
            for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return bool(text) and text.lstrip("+-").replace(".", "", 1).isdigit()


def _milliseconds(moment_ms: int) -> str:
    return _time(datetime.fromtimestamp(moment_ms // 1000, UTC))


def _time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


def _plain(value: Any) -> str:
    assert isinstance(value, date)
    return value.isoformat()
