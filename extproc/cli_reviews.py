"""`tokenweir reviews ...`: reservations of which nobody reported the end, and what people say."""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from extproc.cli_explain_texts import shown
from extproc.core.errors import SettingsError
from extproc.core.explain import Unreadable
from extproc.core.ids import is_valid_id
from extproc.core.reviews import Answer, Resolution, Review, decision
from extproc.settings import Settings

EXIT_NOT_DONE = 1
# A person waits here, not a request.
_TIMEOUT_MS = 3000
_ID_RULE = "1 to 128 letters, digits, '.', '_', ':' or '-'"


def add_review_verbs(verbs: Any, config: argparse.ArgumentParser) -> None:
    """`list` and `resolve` of `tokenweir reviews`."""
    show = verbs.add_parser("list", help="show what waits for your word", parents=[config])
    show.add_argument("--root", help="of this service or shared root only")
    show.add_argument("--json", action="store_true", help="print JSON")
    resolve = verbs.add_parser(
        "resolve", help="say what one of them used; nothing changes twice", parents=[config]
    )
    resolve.add_argument("reservation", metavar="RESERVATION_ID")
    resolve.add_argument("--root", required=True, help="where it waits, as `list` shows")
    resolve.add_argument("--release", action="store_true", help="it used nothing")
    resolve.add_argument("--input", type=int, metavar="N", help="input tokens that it used")
    resolve.add_argument("--output", type=int, metavar="N", help="output tokens that it used")


async def run_reviews_command(args: argparse.Namespace, settings: Settings) -> int:
    """One verb; 1 when a decision changed nothing and something else stands. Raises SettingsError
    for wrong usage."""
    from extproc.stores.client import open_client
    from extproc.stores.reviews import Reviews

    if args.root is not None and not is_valid_id(args.root):
        raise SettingsError("--root", _ID_RULE)
    said = _decision(args) if args.verb == "resolve" else None
    redis = open_client(
        url=settings.redis.url,
        cluster=settings.redis.cluster,
        timeout_ms=_TIMEOUT_MS,
        max_connections=1,
    )
    try:
        reviews = Reviews(redis, writes_events=settings.ledger.enabled)
        if said is None:
            _print(await reviews.waiting(args.root), as_json=args.json)
            return 0
        return _report(args, await reviews.resolve(said))
    finally:
        await redis.close()


def _decision(args: argparse.Namespace) -> Any:
    if not is_valid_id(args.reservation):
        raise SettingsError("RESERVATION_ID", _ID_RULE)
    tokens = (args.input, args.output)
    if args.release and tokens != (None, None):
        raise SettingsError("--release", "goes without --input and --output")
    if not args.release and None in tokens:
        raise SettingsError("reviews resolve", "give --release, or --input and --output")
    try:
        return decision(
            args.reservation,
            args.root,
            input_tokens=args.input or 0,
            output_tokens=args.output or 0,
            release=args.release,
        )
    except ValueError as error:
        raise SettingsError("reviews resolve", str(error)) from error


def _print(reviews: list[Review | Unreadable], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(review) for review in reviews], default=_plain, indent=2))
        return
    if not reviews:
        print("nothing waits")
        return
    rows = [("root", "reservation", "since", "charged", "of it input", "model", "request")]
    rows += [
        (one.root, shown(one.reservation_id), "cannot be read", "-", "-", "-", "-")
        if isinstance(one, Unreadable)
        else (
            one.root,
            shown(one.reservation_id),
            _time(one.since),
            str(one.charged_tokens),
            str(one.input_tokens),
            shown(one.model) or "-",
            shown(one.request_id) or "-",
        )
        for one in reviews
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _report(args: argparse.Namespace, done: Resolution) -> int:
    name = f"{args.reservation} at {args.root}"
    now = f"{done.state}, {done.charged_tokens} tokens charged, said by {done.source}"
    match done.answer:
        case Answer.RESOLVED:
            print(f"{name}: {now} (before: {done.was_charged_tokens})")
            return 0
        case Answer.SAME:
            print(f"{name}: nothing to do, it was resolved so before: {now}")
            return 0
        case Answer.OTHER:
            text = f"was resolved before, and stays so: {now}"
        case Answer.ELSEWHERE:
            text = f"is a part of the request that waits at root {done.own_root}: resolve it there"
        case Answer.UNREADABLE:
            text = f"cannot be read: its record `resv:{{{args.root}}}:{args.reservation}` is spoilt"
        case Answer.NOT_IN_REVIEW:
            source = f", said by {done.source}" if done.source else ""
            text = f"is not in review: {done.state}, {done.charged_tokens} tokens{source}"
        case _:
            text = "is not known: a wrong id or root, or it is too long ago"
    print(f"{name} {text}", file=sys.stderr)
    return EXIT_NOT_DONE


def _plain(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
