"""`tokenweir prices`: check, show and load the price book, and compute prices of one's own GPUs."""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extproc.core.errors import SettingsError, UsageError
from extproc.core.gpu_prices import GpuCost
from extproc.core.price_book import PriceRow
from extproc.core.price_changes import PriceChange, PriceChangeError, PriceEntry
from extproc.settings import Settings

if TYPE_CHECKING:  # every command makes the parser; few need SQLAlchemy and pydantic
    from extproc.stores.price_table import PriceTable

_MOST_DIGITS = 20


def add_price_verbs(verbs: Any, config: argparse.ArgumentParser) -> None:
    """Add the verbs of `tokenweir prices`."""

    def add(verb: str, text: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = verbs.add_parser(verb, help=text, parents=[config])
        return sub

    check = add("check", "say what is wrong with a price file")
    diff = add("diff", "show what loading a price file would change")
    load = add("load", "make the prices of a file true from now on")
    for verb in (check, diff, load):
        verb.add_argument("file", type=Path, metavar="FILE")
    for verb in (diff, load):
        verb.add_argument(
            "--from", dest="start", type=_moment, metavar="TIME", help="from then on: ISO 8601, UTC"
        )
    show = add("list", "show the prices that count")
    show.add_argument("--at", type=_moment, metavar="TIME", help="that counted then: ISO 8601, UTC")
    show.add_argument("--model", help="only those that this model may meet")
    show.add_argument("--json", action="store_true", help="a JSON object a line")
    start = add("start", "print a book of public prices to begin with (extra `prices`)")
    start.add_argument("--provider", action="append", default=[], metavar="NAME")
    gpu = add("gpu", "compute the price of a token from what a GPU costs by the hour")
    gpu.add_argument("--model", required=True, help="a name, or a glob")
    gpu.add_argument("--provider", default="*", help="as requests have it; any by default")
    gpu.add_argument("--gpu-hour-usd", type=_number, required=True, metavar="USD")
    gpu.add_argument("--gpus", type=int, default=1, metavar="N")
    gpu.add_argument("--utilisation-percent", type=_number, required=True, metavar="N")
    gpu.add_argument("--prefill-tokens-per-second", type=_number, required=True, metavar="N")
    gpu.add_argument("--decode-tokens-per-second", type=_number, required=True, metavar="N")
    gpu.add_argument("--yaml", action="store_true", help="print only a price file")


async def run_prices_command(args: argparse.Namespace, settings: Settings) -> int:
    """One verb; prints to standard output, returns the exit status. Raises SettingsError for a file
    that is wrong, UsageError, StoreUnavailableError."""
    if args.verb == "gpu":
        return _gpu(args)
    if args.verb == "start":
        return _start(args)
    if args.verb == "check":
        entries = _read(args.file, None)
        print(f"{len(entries)} entries, {sum(len(each.rates) for each in entries)} prices")
        return 0
    from extproc.app import open_database
    from extproc.stores.price_table import PriceTable

    database = open_database(settings)
    try:
        table = PriceTable(database)
        if args.verb == "list":
            return await _list(args, table)
        entries = _read(args.file, args.start)
        try:
            is_dry = args.verb == "diff"
            changes = await (table.plan(entries) if is_dry else table.apply(entries))
        except PriceChangeError as error:
            raise SettingsError(str(args.file), str(error)) from error
        return _print_changes(changes, is_dry=is_dry)
    finally:
        await database.close()


def _start(args: argparse.Namespace) -> int:
    from extproc.starting_prices import starting_book

    try:
        for line in starting_book(args.provider):
            print(line)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("genai_prices"):
            raise
        text = "needs the extra prices: pip install 'tokenweir[prices]'"
        raise UsageError("prices start", text) from error
    except ValueError as error:
        raise UsageError("prices start", str(error)) from error
    return 0


def _read(path: Path, start: datetime | None) -> Sequence[PriceEntry]:
    from extproc.stores.price_file import read_price_path

    try:
        entries = read_price_path(path)
    except (OSError, ValueError) as error:
        raise SettingsError(str(path), str(error)) from error
    if start is None:
        return entries
    return [replace(entry, effective_from=start) for entry in entries]


def _print_changes(changes: Iterable[PriceChange], *, is_dry: bool) -> int:
    count = 0
    for change in changes:
        print(change.text())
        count += 1
    print(f"{count} to change; nothing was written" if is_dry else f"{count} changed")
    return 0


async def _list(args: argparse.Namespace, table: "PriceTable") -> int:
    if args.at is None:
        loaded = await table.load()
        book, at = loaded.book, loaded.at
    else:
        book, at = await table.history(), args.at
    for row in sorted(book.rows, key=lambda row: row.key):
        if row.is_in_force(at) and (args.model is None or _matches(row, args.model)):
            print(_json(row) if args.json else _line(row))
    return 0


def _matches(row: PriceRow, model: str) -> bool:
    return fnmatchcase(model.lower(), row.model.lower())


def _line(row: PriceRow) -> str:
    rate = row.rate
    words = [row.provider, row.model, rate.price_class.value]
    if rate.service_tier:
        words.append(f"tier {rate.service_tier}")
    if rate.above_input_tokens:
        words.append(f"above {rate.above_input_tokens}")
    part = "" if rate.permille == 1000 else f" x {rate.permille}/1000"
    price = f"{rate.micros_per_million}{part} micro-USD per million {row.unit}s"
    end = "" if row.effective_to is None else f" to {_time(row.effective_to)}"
    source = f" ({row.source})" if row.source else ""
    return f"{' '.join(words)}: {price} from {_time(row.effective_from)}{end}{source}"


def _json(row: PriceRow) -> str:
    rate = row.rate
    return json.dumps(
        {
            "provider": row.provider,
            "model": row.model,
            "price_class": rate.price_class.value,
            "service_tier": rate.service_tier,
            "above_input_tokens": rate.above_input_tokens,
            "unit": row.unit,
            "currency": row.currency,
            "micros_per_million": rate.micros_per_million,
            "permille": rate.permille,
            "effective_from": _time(row.effective_from),
            "effective_to": None if row.effective_to is None else _time(row.effective_to),
            "source": row.source,
        }
    )


def _gpu(args: argparse.Namespace) -> int:
    try:
        given = GpuCost(
            gpu_hour_usd=args.gpu_hour_usd,
            gpus=args.gpus,
            utilisation_percent=args.utilisation_percent,
            prefill_tokens_per_second=args.prefill_tokens_per_second,
            decode_tokens_per_second=args.decode_tokens_per_second,
        )
        prices = {
            "input": (given.input_micros_per_million, given.prefill_tokens_per_second),
            "output": (given.output_micros_per_million, given.decode_tokens_per_second),
        }
    except ValueError as error:
        raise UsageError("prices gpu", str(error)) from error
    hour = f"{given.gpu_hour_usd} USD x {given.gpus} GPUs"
    if not args.yaml:
        for name, (micros, speed) in prices.items():
            tokens = f"{speed} tokens/s x 3600 s x {given.utilisation_percent} %"
            print(f"{name}: {hour} x 1,000,000 / ({tokens}) = {_usd(micros)} USD a million tokens")
        return 0
    usd = ", ".join(f"{name}: {_usd(micros)}" for name, (micros, _) in prices.items())
    print("prices:")
    print(f"  - provider: {json.dumps(args.provider)}")
    print(f"    model: {json.dumps(args.model)}")
    print("    source: gpu")
    print(f"    usd: {{{usd}}}")
    return 0


def _usd(micros: int) -> str:
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: str) -> datetime:
    from extproc.stores.policy_file import parse_moment

    try:
        return parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a time (2026-12-01T00:00:00Z): {text}") from error


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise argparse.ArgumentTypeError(f"not a number: {text[:_MOST_DIGITS]}") from error
    if not number.is_finite() or len(text) > _MOST_DIGITS or abs(number.adjusted()) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"not a number: {text[:_MOST_DIGITS]}")
    return number
