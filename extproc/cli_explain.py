"""`tokenweir explain`: why a request was, or would be, refused; as text or JSON."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from extproc.cli_explain_texts import refusal_lines, reservation_lines, shown, subject_lines
from extproc.core.errors import SettingsError
from extproc.core.explain import Asked
from extproc.core.ids import is_valid_id
from extproc.core.policies import Descriptor, Scope
from extproc.settings import Settings

EXIT_NOT_FOUND = 1
# A person waits here, not a request.
_TIMEOUT_MS = 3000
_NOTHING = (
    "nothing is known of {}{}: a reservation that has ended is kept for 15 minutes, and of the "
    "requests that a limit refused the last 50 of each root, for an hour. What was refused for "
    "another reason (401, 403, 413, 503) is a log line only"
)
_ID_RULE = "1 to 128 letters, digits, '.', '_', ':' or '-'"


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tokenweir explain`."""
    parser.add_argument("id", nargs="?", metavar="ID", help="a reservation, or Envoy's request id")
    parser.add_argument("--subject", metavar="SCOPE=VALUE,...", help="who asks: tenant=a,user=b")
    parser.add_argument("--model", help="the model that is asked for, with --subject")
    parser.add_argument("--service", help="the service that is asked, with --subject")
    parser.add_argument(
        "--root",
        help="whose limits, by default the service, or else the tenant of --subject; with an ID: "
        "look only there",
    )
    parser.add_argument("--tokens", type=int, help="tokens to reserve, default 1")
    parser.add_argument("--output-tokens", type=int, help="how many of them are expected output")
    parser.add_argument("--cost-micros", type=int, help="what they cost in micro-USD, default 0")
    parser.add_argument("--json", action="store_true", help="print JSON")


async def run_explain_command(args: argparse.Namespace, settings: Settings) -> int:
    """Look and print; 1 when nothing is known of an id. Raises SettingsError for wrong usage."""
    from extproc.stores.client import open_client
    from extproc.stores.explain import explain_subject
    from extproc.stores.explain_records import explain_reservation
    from extproc.stores.explain_refusals import explain_refusals
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
            where = {"wanted_id": question, "root": args.root}
            refusals = await explain_refusals(redis, database, **where)
            reservations = await explain_reservation(redis, database, **where)
            if not refusals and not reservations:
                at_root = "" if args.root is None else f" at root {args.root}"
                print(_NOTHING.format(shown(question), at_root), file=sys.stderr)
                return EXIT_NOT_FOUND
            plain = {
                "refusals": [asdict(one) for one in refusals],
                "reservations": [asdict(one) for one in reservations],
            }
            texts = (*map(refusal_lines, refusals), *map(reservation_lines, reservations))
            _print(args, plain, *texts)
        else:
            descriptor, asked = question
            report = await explain_subject(redis, database, descriptor=descriptor, asked=asked)
            _print(args, asdict(report), subject_lines(report))
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
        if args.root is not None:
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
