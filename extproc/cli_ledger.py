"""`tokenweir ledger ...`: bills, reconciliation with providers' exports, replay of policies."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from extproc.cli_ledger_texts import (
    as_json,
    bill_csv,
    bill_table,
    reconciliation_table,
    replay_table,
)
from extproc.core.bills import CostOf, bill, is_of
from extproc.core.counted import descriptor_of
from extproc.core.errors import UsageError
from extproc.core.exports import Export, ExportError
from extproc.core.ledger_rows import LedgerRow, in_period
from extproc.core.policies import Scope
from extproc.core.reconcile import By, Names, Tolerance, differences
from extproc.core.replay import replay
from extproc.providers.exports import READERS, read_export, together
from extproc.providers.exports.documents import MAX_BYTES
from extproc.stores.policy_file import read_policy_path
from extproc.stores.policy_yaml import PolicyFileError

EXIT_DIFFERS = 1
_MAX_NAMES_BYTES = 4 * 1024 * 1024
_MAX_NAMES = 100_000
_TIME_HELP = "a day or time (ISO 8601)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """Rows that a command needs: of what was admitted in [start, end), of one root and one provider
    if they are given, ordered by admission, reservation and revision."""

    start: datetime
    end: datetime
    root: str | None = None
    provider: str | None = None


Rows = Callable[[LedgerQuery], Iterable[LedgerRow]]


def add_ledger_verbs(verbs: Any, config: argparse.ArgumentParser) -> None:
    """`bill`, `reconcile` and `replay` of `tokenweir ledger`."""
    text = "what a tenant owes, computed again from tokens and price versions"
    one = verbs.add_parser("bill", help=text, description=text, parents=[config])
    one.add_argument("--tenant", metavar="ROOT", help="the service or tenant")
    one.add_argument("--subject", metavar="SCOPE:VALUE", help="of it only this, as user:alice")
    _add_period(one, is_required=True)
    one.add_argument("--zone", default="UTC", help="time zone of days and of --from and --to")
    one.add_argument("--format", choices=("table", "csv", "json"), default="table")

    text = "compare the ledger with a provider's export; 1 when they differ beyond the tolerance"
    one = verbs.add_parser("reconcile", help=text, description=text, parents=[config])
    one.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON or CSV")
    one.add_argument("--provider", choices=sorted(READERS), required=True, help="whose export")
    one.add_argument("--ledger-provider", metavar="NAME", help="compare with rows of it only")
    one.add_argument("--by", default="day,model", help="of day, model, key, request")
    one.add_argument("--key", default="root", help="what a key is in the ledger: root or a scope")
    one.add_argument("--names", type=Path, metavar="FILE", help='JSON: {"models": {}, "keys": {}}')
    for name, unit in (
        ("micros", "micro-USD"),
        ("tokens", "tokens"),
        ("requests", "requests"),
        ("ppm", "millionths of the export"),
    ):
        text = f"differences up to so many {unit} are alike"
        one.add_argument(f"--tolerance-{name}", type=int, default=0, metavar="N", help=text)
    _add_period(one, is_required=False)
    one.add_argument("--all", action="store_true", help="show sums that are alike too")
    one.add_argument("--format", choices=("table", "json"), default="table")

    text = "what proposed policies would have refused"
    one = verbs.add_parser("replay", help=text, description=text, parents=[config])
    one.add_argument("--policy", type=Path, required=True, metavar="FILE", help="YAML, as applied")
    one.add_argument("--tenant", metavar="ROOT", help="of this service or tenant only")
    _add_period(one, is_required=True)
    one.add_argument("--most", type=int, default=100, metavar="N", help="show so many refusals")
    one.add_argument("--format", choices=("table", "json"), default="table")


def run_ledger_command(args: argparse.Namespace, rows: Rows, cost_of: CostOf | None = None) -> int:
    """One verb; prints to standard output. Raises UsageError for wrong options and files."""
    commands = {"reconcile": _reconcile, "replay": _replay}
    if args.verb == "bill":
        return _bill(args, rows, cost_of)
    return commands[args.verb](args, rows)


def _add_period(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    parser.add_argument("--from", dest="start", required=is_required, help=_TIME_HELP)
    parser.add_argument(
        "--to", dest="end", required=is_required, help=f"{_TIME_HELP}, which is not included"
    )


def _bill(args: argparse.Namespace, rows: Rows, cost_of: CostOf | None) -> int:
    zone = _zone(args.zone)
    start, end = _period(args, zone)
    if args.tenant is None and args.subject is None:
        raise UsageError("ledger bill", "give --tenant, --subject or both")
    found = rows(LedgerQuery(start=start, end=end, root=args.tenant))
    found = (row for row in found if args.tenant in (None, row.root))
    if args.subject is not None:
        scope, value = _subject(args.subject)
        found = (row for row in found if is_of(row, scope, value))
    tenant = ", ".join(name for name in (args.tenant, args.subject) if name is not None)
    done = bill(found, tenant=tenant, start=start, end=end, zone=zone, cost_of=cost_of)
    render = {"table": bill_table, "csv": bill_csv, "json": as_json}[args.format]
    _write(render(done))
    return EXIT_DIFFERS if done.discrepancies else 0


def _reconcile(args: argparse.Namespace, rows: Rows) -> int:
    by = _by(args.by)
    names = _names(args.names)
    tolerance = _tolerance(args)
    export = _export(args.files, args.provider)
    for text in export.warnings:
        print(f"tokenweir: {text}", file=sys.stderr)
    start, end = _export_period(args, export)
    told = [row for row in export.rows if start.date() <= row.day < end.date()]
    query = LedgerQuery(start=start, end=end, provider=args.ledger_provider)
    ours = (
        row
        for row in in_period(rows(query), start, end)
        if args.ledger_provider in (None, row.provider)
    )
    done = differences(
        ours,
        replace(export, rows=tuple(told)),
        by=by,
        tolerance=tolerance,
        names=names,
        key_of=_key_of(args.key),
    )
    text = reconciliation_table(done, shows_all=args.all)
    _write(text if args.format == "table" else as_json(done))
    return EXIT_DIFFERS if done.beyond else 0


def _replay(args: argparse.Namespace, rows: Rows) -> int:
    start, end = _period(args, UTC)
    if args.most < 0:
        raise UsageError("--most", "must be 0 or more")
    try:
        file = read_policy_path(args.policy)
    except (PolicyFileError, OSError) as error:
        raise UsageError("--policy", f"{args.policy}: {error}") from error
    root = args.tenant
    if file.root is not None:
        if root not in (None, file.root):
            raise UsageError("--tenant", f"the file has policies of {file.root}")
        root = file.root
    found = in_period(rows(LedgerQuery(start=start, end=end, root=root)), start, end)
    done = replay(
        (row for row in found if root in (None, row.root)),
        [draft.policy for draft in file.drafts],
        most_refusals=args.most,
    )
    _write(replay_table(done) if args.format == "table" else as_json(done))
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)


def _zone(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError("--zone", f"there is no time zone {name!r}, as Europe/Berlin") from error


def _moment(option: str, text: str, zone: tzinfo) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
        if not 1970 <= moment.astimezone(UTC).year <= 9998:
            raise ValueError(text)
        return moment
    except (ValueError, OverflowError) as error:
        raise UsageError(option, f"must be a day or a time as 2026-12-01, got {text!r}") from error


def _period(args: argparse.Namespace, zone: tzinfo) -> tuple[datetime, datetime]:
    start, end = _moment("--from", args.start, zone), _moment("--to", args.end, zone)
    if end <= start:
        raise UsageError("--to", "must be after --from")
    return start, end


def _export_period(args: argparse.Namespace, export: Export) -> tuple[datetime, datetime]:
    """Whole days in UTC: those of the export where they are not given."""
    days = sorted({row.day for row in export.rows})
    if not days and None in (args.start, args.end):
        raise UsageError("reconcile", "the export has no rows: give --from and --to")
    if args.start is None:
        args.start = days[0].isoformat()
    if args.end is None:
        args.end = (days[-1] + timedelta(days=1)).isoformat()
    start, end = _period(args, UTC)
    for option, moment in (("--from", start), ("--to", end)):
        if moment.astimezone(UTC).time() != time():
            raise UsageError(option, "must be a day: providers tell whole days in UTC")
    return start.astimezone(UTC), end.astimezone(UTC)


def _subject(text: str) -> tuple[Scope, str]:
    scope, colon, value = text.partition(":")
    if scope not in set(Scope) or not colon or not value:
        raise UsageError("--subject", "must be a scope and its value, as user:alice")
    if scope == Scope.API_KEY:
        raise UsageError("--subject", "keys of APIs are secrets that the ledger does not hold")
    return Scope(scope), value


def _by(text: str) -> tuple[By, ...]:
    words = text.split(",")
    if not set(words) <= set(By) or len(set(words)) < len(words):
        raise UsageError("--by", "must be of day, model, key, request, with commas")
    return tuple(By(word) for word in words)


def _key_of(name: str) -> Callable[[LedgerRow], str]:
    if name == "root":
        return lambda row: row.root
    if name not in set(Scope) - {Scope.API_KEY}:
        raise UsageError("--key", "must be root or a scope, as project; not api_key: it is secret")
    scope = Scope(name)
    return lambda row: descriptor_of(row).values.get(scope, "")


def _tolerance(args: argparse.Namespace) -> Tolerance:
    given = {name: getattr(args, f"tolerance_{name}") for name in ("micros", "tokens", "requests")}
    given["ppm"] = args.tolerance_ppm
    for name, value in given.items():
        if value < 0:
            raise UsageError(f"--tolerance-{name}", "must be 0 or more")
    return Tolerance(**given)


def _export(files: Iterable[Path], provider: str) -> Export:
    exports = []
    for path in files:
        try:
            with path.open("rb") as file:
                exports.append(read_export(file.read(MAX_BYTES + 1), path.name, provider))
        except OSError as error:
            raise UsageError("FILE", f"{path}: {error.strerror}") from error
        except ExportError as error:
            raise UsageError("FILE", str(error)) from error
    return together(exports)


def _names(path: Path | None) -> Names:
    if path is None:
        return Names()
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_NAMES_BYTES + 1)
        plain = json.loads(data) if len(data) <= _MAX_NAMES_BYTES else None
    except OSError as error:
        raise UsageError("--names", f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError("--names", f"{path}: is not JSON") from error
    if not isinstance(plain, dict) or not set(plain) <= {"models", "keys"}:
        raise UsageError("--names", f'{path}: must be {{"models": {{}}, "keys": {{}}}}')
    for name, pairs in plain.items():
        is_right = isinstance(pairs, dict) and len(pairs) <= _MAX_NAMES
        if not is_right or not all(isinstance(value, str) for value in pairs.values()):
            raise UsageError("--names", f"{path}: {name} must be names by name")
    return Names(**plain)
