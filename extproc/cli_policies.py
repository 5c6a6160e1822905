"""`tokenweir limits apply|policies|block|unblock|override`: show and change policies."""

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extproc.core.errors import SettingsError, UsageError
from extproc.core.ids import is_root_id
from extproc.core.policies import BadRow, Block, Dimension, LimitPolicy, PolicySet, Scope
from extproc.core.policy_plan import PolicyFile, describe

if TYPE_CHECKING:  # every command makes the parser; few need SQLAlchemy and pydantic
    from extproc.stores.limit_admin import PolicyAdmin
    from extproc.stores.policy_table import PolicyCheck

EXIT_NOT_FOUND = 1
EXIT_CHANGED = 4
EXIT_BAD = 5
# What every request has, without a source in the settings.
ALWAYS_THERE = (Scope.SERVICE, Scope.MODEL, Scope.PROVIDER)
# Any limit has fewer.
_MOST_DIGITS = 20
VERBS = ("apply", "check", "policies", "block", "unblock", "override")


def add_policy_verbs(verbs: Any, config: argparse.ArgumentParser) -> None:
    """Add these verbs to those of `tokenweir limits`."""

    def add(verb: str, text: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = verbs.add_parser(verb, help=text, parents=[config])
        return sub

    apply = add("apply", "make the policies of a YAML file true")
    apply.add_argument("-f", "--file", type=Path, required=True, metavar="FILE")
    apply.add_argument("--dry-run", action="store_true", help="only show what would change")
    add("check", "show what is stored and cannot be read, or has no room")
    show = add("policies", "show policies, blocks and overrides")
    show.add_argument("--root", type=_root, help="only what concerns this root")
    block = add("block", "refuse everything of one value of a scope")
    unblock = add("unblock", "remove such a block")
    for verb in (block, unblock):
        verb.add_argument("scope", metavar="SCOPE", type=Scope, choices=list(Scope))
        verb.add_argument("value", metavar="VALUE")
        verb.add_argument("--root", type=_root, help="at this root only")
    block.add_argument("--until", type=_moment, metavar="TIME", help="ISO 8601, UTC")
    block.add_argument("--reason", default="")
    override = add("override", "set another limit for one rule, for a while")
    override.add_argument("policy", metavar="POLICY")
    override.add_argument("dimension", metavar="DIMENSION", type=Dimension, choices=list(Dimension))
    override.add_argument("limit", metavar="LIMIT", type=_limit, help="a number; none: end it")
    override.add_argument(
        "--until", type=_moment, metavar="TIME", help="ISO 8601, UTC; needed with a number"
    )


async def run_policies_command(
    args: argparse.Namespace, admin: "PolicyAdmin", *, sources: Collection[Scope]
) -> int:
    """One verb; prints to standard output, returns the exit status.

    ``sources`` are the scopes of which the settings say where their values come from."""
    try:
        match args.verb:
            case "apply":
                return await _apply(args.file, admin, sources, is_dry=args.dry_run)
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
                _warn_of_scopes({args.scope: [f"block of {args.value}"]}, sources)
                await admin.block(block)
                print(f"blocked {args.scope} {args.value}")
            case "unblock":
                if not await admin.unblock(args.scope, args.value, root=args.root):
                    print(f"not blocked: {args.scope} {args.value}", file=sys.stderr)
                    return EXIT_NOT_FOUND
                print(f"unblocked {args.scope} {args.value}")
            case "override":
                return await _override(args, admin)
    except ValueError as error:
        raise UsageError(f"limits {args.verb}", str(error)) from error
    return 0


def _read(path: Path) -> PolicyFile:
    from extproc.stores.policy_file import read_policy_path

    try:
        return read_policy_path(path)
    except (OSError, ValueError) as error:
        raise SettingsError(str(path), str(error)) from error


async def _apply(
    path: Path, admin: "PolicyAdmin", sources: Collection[Scope], *, is_dry: bool
) -> int:
    from extproc.stores.policy_table import PoliciesChangedError

    file = _read(path)
    about: dict[Scope, list[str]] = {}
    for draft in file.drafts:
        about.setdefault(draft.policy.scope, []).append(draft.policy.name)
    _warn_of_scopes(about, sources)
    try:
        changes = await admin.plan(file)
    except ValueError as error:
        raise SettingsError(str(path), str(error)) from error
    for change in changes:
        print("\n".join(describe(change)))
    names = {draft.policy.name for draft in file.drafts}
    ended = {change.name for change in changes if change.name not in names}
    if ended:
        verb = "would end" if is_dry else "ends"
        print(f"{verb} {len(ended)} {_policies(ended)} not in this file")
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


def _policies(names: Collection[str]) -> str:
    return "policy that is" if len(names) == 1 else "policies that are"


def _warn_of_scopes(about: Mapping[Scope, Sequence[str]], sources: Collection[Scope]) -> None:
    """Say on standard error what no request may ever meet: nothing gives its scope a value."""
    for scope, names in about.items():
        if scope not in sources and scope not in ALWAYS_THERE:
            print(
                f"warning: {', '.join(names)}: identity.scopes.{scope} is not in the settings that "
                f"this command sees; if the servers have none either, no request has a {scope}",
                file=sys.stderr,
            )


async def _override(args: argparse.Namespace, admin: "PolicyAdmin") -> int:
    if args.limit is None:
        if not await admin.end_override(args.policy, args.dimension):
            print(f"no override: {args.policy} {args.dimension}", file=sys.stderr)
            return EXIT_NOT_FOUND
        print(f"{args.policy} {args.dimension}: override ended")
        return 0
    if args.until is None:
        raise UsageError("limits override", "--until is needed with a number")
    _check_until(args.until)
    await admin.override(args.policy, args.dimension, limit=args.limit, until=args.until)
    print(f"{args.policy} {args.dimension}: {args.limit} until {_time(args.until)}")
    return 0


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
    print("everything can be read, and there is room for it")
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
