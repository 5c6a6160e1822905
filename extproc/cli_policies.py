"""`tokenweir limits apply|policies|block|unblock|override`: show and change policies."""

import argparse
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extproc.core.errors import SettingsError
from extproc.core.ids import is_root_id
from extproc.core.policies import BadRow, Block, Dimension, LimitPolicy, PolicySet, Scope
from extproc.core.policy_plan import PolicyFile, describe

if TYPE_CHECKING:  # every command makes the parser; few need SQLAlchemy and pydantic
    from extproc.stores.limit_admin import PolicyAdmin
    from extproc.stores.policy_table import PolicyCheck

EXIT_NOT_FOUND = 1
EXIT_CHANGED = 4
EXIT_BAD = 5
# Any limit has fewer.
_MOST_DIGITS = 20
VERBS = ("apply", "check", "policies", "block", "unblock", "override")


def add_policy_verbs(verbs: Any) -> None:
    """Add these verbs to those of `tokenweir limits`."""
    apply = verbs.add_parser("apply", help="make the policies of a YAML file true")
    apply.add_argument("-f", "--file", type=Path, required=True, metavar="FILE")
    apply.add_argument("--dry-run", action="store_true", help="only show what would change")
    verbs.add_parser("check", help="show what is stored and cannot be read, or has no room")
    show = verbs.add_parser("policies", help="show policies, blocks and overrides")
    show.add_argument("--root", type=_root, help="only what concerns this root")
    block = verbs.add_parser("block", help="refuse everything of one value of a scope")
    unblock = verbs.add_parser("unblock", help="remove such a block")
    for verb in (block, unblock):
        verb.add_argument("scope", metavar="SCOPE", type=Scope, choices=list(Scope))
        verb.add_argument("value", metavar="VALUE")
        verb.add_argument("--root", type=_root, help="at this root only")
    block.add_argument("--until", type=_moment, metavar="TIME", help="ISO 8601, UTC")
    block.add_argument("--reason", default="")
    override = verbs.add_parser("override", help="set another limit for one rule, for a while")
    override.add_argument("policy", metavar="POLICY")
    override.add_argument("dimension", metavar="DIMENSION", type=Dimension, choices=list(Dimension))
    override.add_argument("limit", metavar="LIMIT", type=_limit, help="a number; none: end it")
    override.add_argument("--until", type=_moment, metavar="TIME", help="ISO 8601, UTC")


async def run_policies_command(args: argparse.Namespace, admin: "PolicyAdmin") -> int:
    """One verb; prints to standard output, returns the exit status."""
    try:
        match args.verb:
            case "apply":
                return await _apply(args.file, admin, is_dry=args.dry_run)
            case "check":
                return _print_check(await admin.check())
            case "policies":
                _print(await admin.list(args.root))
            case "block":
                _check_until(args.until)
                block = Block(
                    scope=args.scope,
                    value=args.value,
                    reason=args.reason,
                    root=args.root,
                    until=args.until,
                )
                await admin.block(block)
                print(f"blocked {args.scope} {args.value}")
            case "unblock":
                if not await admin.unblock(args.scope, args.value, root=args.root):
                    print(f"not blocked: {args.scope} {args.value}", file=sys.stderr)
                    return EXIT_NOT_FOUND
                print(f"unblocked {args.scope} {args.value}")
            case "override":
                await _override(args, admin)
    except ValueError as error:
        raise SettingsError(f"limits {args.verb}", str(error)) from error
    return 0


def _read(path: Path) -> PolicyFile:
    from extproc.stores.policy_file import read_policy_path

    try:
        return read_policy_path(path)
    except (OSError, ValueError) as error:
        raise SettingsError(str(path), str(error)) from error


async def _apply(path: Path, admin: "PolicyAdmin", *, is_dry: bool) -> int:
    from extproc.stores.policy_table import PoliciesChangedError

    file = _read(path)
    try:
        changes = await admin.plan(file)
    except ValueError as error:
        raise SettingsError(str(path), str(error)) from error
    for change in changes:
        print("\n".join(describe(change)))
    if is_dry:
        print(f"{len(changes)} to change; nothing was written")
        return 0
    try:
        await admin.apply(file, changes)
    except PoliciesChangedError:
        print("somebody else changed policies meanwhile; nothing was written", file=sys.stderr)
        return EXIT_CHANGED
    print(f"{len(changes)} changed")
    return 0


async def _override(args: argparse.Namespace, admin: "PolicyAdmin") -> None:
    if args.limit is None:
        await admin.end_override(args.policy, args.dimension)
        print(f"{args.policy} {args.dimension}: no override")
        return
    if args.until is None:
        raise ValueError("--until is needed")
    _check_until(args.until)
    await admin.override(args.policy, args.dimension, limit=args.limit, until=args.until)
    print(f"{args.policy} {args.dimension}: {args.limit} until {_time(args.until)}")


def _print(policies: PolicySet) -> None:
    for policy in policies.policies:
        print(_line(policy))
        for rule in policy.rules:
            extra = "" if rule.burst is None else f" burst {rule.burst}"
            if rule.algorithm != "minute":
                extra = f" {rule.algorithm}{extra}"
            if rule.algorithm == "sliding":
                extra += f" {rule.window_seconds}s"
            if rule.cycle_start is not None and rule.cycle_end is not None:
                extra += f" {_time(rule.cycle_start)} to {_time(rule.cycle_end)}"
            print(f"    {rule.dimension} {rule.limit}{extra}")
    for block in policies.blocks:
        until = "" if block.until is None else f" until {_time(block.until)}"
        where = "" if block.root is None else f" at root {block.root}"
        reason = block.reason and f": {block.reason}"
        print(f"blocked {block.scope} {block.value}{where}{until}{reason}")
    for override in policies.overrides:
        until = _time(override.until)
        print(f"override {override.policy} {override.dimension} {override.limit} until {until}")
    print_bad(policies.bad)


def print_bad(rows: Iterable[BadRow]) -> None:
    """Rows that cannot be read, and what becomes of them."""
    for row in rows:
        print(f"cannot be read, {row.effect}: {row}")


def _print_check(found: "PolicyCheck") -> int:
    print_bad(found.bad)
    for crowd in found.crowds:
        print(f"no room: {crowd}")
    if found.bad or found.crowds:
        return EXIT_BAD
    print("all can be read and has room")
    return 0


def _line(policy: LimitPolicy) -> str:
    words = [f"{policy.name} v{policy.version}: {policy.scope} {policy.value}"]
    if policy.model != "*":
        words.append(f"model {policy.model}")
    if policy.root is not None:
        words.append(f"root {policy.root}")
    if policy.across_roots:
        words.append("across roots")
    words.append(policy.mode.value)
    if policy.on_exceed == "record":
        words.append("record only")
    words.append(f"from {_time(policy.effective_from)}")
    if policy.effective_to is not None:
        words.append(f"to {_time(policy.effective_to)}")
    return ", ".join(words)


def _check_until(until: datetime | None) -> None:
    if until is not None and until <= datetime.now(UTC):
        raise ValueError(f"--until {_time(until)} is in the past")


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: str) -> datetime:
    from extproc.stores.policy_file import parse_moment

    try:
        return parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a time (2026-12-01T00:00:00Z): {text}") from error


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        shown = text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."
        raise argparse.ArgumentTypeError(f"no limit, nor none: {shown}")
    return int(text)


def _root(text: str) -> str:
    if not is_root_id(text):
        rule = "1 to 128 letters, digits, '.', '_', ':' or '-', not beginning with across:"
        raise argparse.ArgumentTypeError(rule)
    return text
