"""`tokenweir explain`: why a request was, or would be, refused; as text or JSON."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from extproc.cli_explain_texts import refusal_lines, reservation_lines, shown, subject_lines
from extproc.core.errors import UsageError
from extproc.core.explain import Asked
from extproc.core.explain_rules import cost_of
from extproc.core.ids import is_valid_id
from extproc.core.limits import MAX_LIMIT
from extproc.core.policies import Descriptor, Scope
from extproc.core.price_list import PriceList
from extproc.settings import Settings

EXIT_NOT_FOUND = 1
# A person waits here, not a request.
_TIMEOUT_MS = 3000
_NOTHING = (
    "nothing is known of {}{}: a reservation that has ended is kept for 15 minutes, and of the "
    "requests that a limit refused the last 50 of each root, for an hour. What was refused for "
    "another reason is a log line only "
    "(400, 401, 403 but unpriced_model, 409, 413, 415, 422, 503)"
)
_ID_RULE = "1 to 128 letters, digits, '.', '_', ':' or '-'"


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tokenweir explain`."""
    parser.add_argument("id", nargs="?", metavar="ID", help="a reservation, or Envoy's request id")
    parser.add_argument("--subject", metavar="SCOPE=VALUE,...", help="who asks: tenant=a,user=b")
    parser.add_argument("--model", help="the model that is asked for; needed without an ID")
    parser.add_argument("--service", help="the service that asks; the root of its limits")
    parser.add_argument(
        "--root",
        help="whose limits, by default the service, or else the tenant of --subject; with an ID: "
        "look only there",
    )
    parser.add_argument("--tokens", type=int, help="tokens to reserve, default 1")
    parser.add_argument("--output-tokens", type=int, help="how many of them are expected output")
    parser.add_argument(
        "--cost-micros",
        type=int,
        help="what they cost in micro-USD, by default what the prices of the settings say",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


async def run_explain_command(args: argparse.Namespace, settings: Settings) -> int:
    """Look and print; 1 when nothing is known of an id. Raises UsageError."""
    from extproc.stores.client import open_client
    from extproc.stores.explain import explain_subject
    from extproc.stores.explain_records import explain_reservation
    from extproc.stores.explain_refusals import explain_refusals
    from extproc.stores.sql import Database

    question = _question(args, settings.price_list())
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
            descriptor, asked, hints = question
            report = await explain_subject(redis, database, descriptor=descriptor, asked=asked)
            _print(args, asdict(report), subject_lines(report, hints=hints))
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


def _question(
    args: argparse.Namespace, prices: PriceList
) -> str | tuple[Descriptor, Asked, list[str]]:
    """A reservation's or request's id; or a subject, what it asks, and what was assumed of it."""
    only_subject = ("model", "service", "tokens", "output_tokens", "cost_micros")
    if (args.id is None) == (args.subject is None and args.service is None):
        raise UsageError("explain", "give an ID, or --service or --subject, with --model")
    if args.id is not None:
        for name in only_subject:
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')}", "goes without an ID")
        if args.root is not None:
            _check_id("--root", args.root)
        return str(args.id)
    if args.model is None:
        raise UsageError("--model", "is needed with --service and --subject")
    values = _subject(args.subject)
    if args.service is not None:
        values[Scope.SERVICE] = args.service
    root = args.root or values.get(Scope.SERVICE) or values.get(Scope.TENANT)
    if root is None:
        raise UsageError("--service", "or --root is needed for a subject without service or tenant")
    _check_id("--root", root)
    hints = []
    if Scope.SERVICE not in values:
        values[Scope.SERVICE] = root  # as at admission
        if args.root is None:
            hints.append(f"service {shown(root)} is assumed, from the tenant: --service says it")
    if Scope.PROVIDER not in values:
        # Admission goes by the path of the request, which nobody knows here.
        provider = "anthropic" if args.model.lower().startswith("claude") else "openai"
        values[Scope.PROVIDER] = provider
        hints.append(f"provider {provider} is assumed, from the model: provider=... says it")
    if args.tokens is None:
        hints.append(
            "only 1 token is asked: give --tokens, or a limit of tokens seems to have room"
        )
    given = {
        name: getattr(args, name)
        for name in ("tokens", "output_tokens", "cost_micros")
        if getattr(args, name) is not None
    }
    try:
        asked = _priced(Asked(**given), args, prices)
    except ValueError as error:
        raise UsageError("explain", str(error)) from error
    return Descriptor(root=root, values=values, requested_model=args.model), asked, hints


def _priced(asked: Asked, args: argparse.Namespace, prices: PriceList) -> Asked:
    """With the cost by the prices of the settings, unless it is given."""
    if args.cost_micros is not None:
        return asked
    price = prices.of(args.model)
    if price is None:
        return replace(asked, is_priced=False)
    pair, tokens, output = (
        (price.input_micros, price.output_micros),
        asked.tokens,
        asked.output_tokens,
    )
    if output is None:  # as the limits of input and of output: all of it, of the dearer kind
        cost = max(cost_of(tokens, 0, pair), cost_of(0, tokens, pair))
    else:
        cost = cost_of(tokens - output, output, pair)
    return replace(asked, cost_micros=min(cost, MAX_LIMIT))


def _subject(text: str | None) -> dict[Scope, str]:
    values: dict[Scope, str] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name not in list(Scope) or not value:
            scopes = ", ".join(Scope)
            raise UsageError("--subject", f"SCOPE=VALUE,... of {scopes}; got {part!r}")
        values[Scope(name)] = value
    return values


def _check_id(key: str, value: str) -> None:
    if not is_valid_id(value):
        raise UsageError(key, _ID_RULE)
