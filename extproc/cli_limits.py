"""`tokenweir limits ...`: show and change limits."""

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from extproc.cli_policies import VERBS, print_bad, run_policies_command
from extproc.core.errors import SettingsError
from extproc.core.ids import is_valid_id
from extproc.core.limits import ServiceLimit
from extproc.settings import Settings
from extproc.stores.client import open_client
from extproc.stores.limit_admin import LimitAdmin, PolicyAdmin
from extproc.stores.limit_table import LimitTable
from extproc.stores.policy_table import PolicyTable
from extproc.stores.sql import Database

EXIT_NOT_FOUND = 1
# A person waits here, not a request.
_TIMEOUT_MS = 3000


async def run_limits_command(args: argparse.Namespace, settings: Settings) -> int:
    """One verb of the command line; prints to standard output, returns the exit status."""
    service = getattr(args, "service", None)
    if service is not None and not is_valid_id(service):
        raise SettingsError("SERVICE", "1 to 128 letters, digits, '.', '_', ':' or '-'")
    database = Database(url=settings.database.url, threads=1, timeout_ms=_TIMEOUT_MS)
    redis = open_client(
        url=settings.redis.url,
        cluster=settings.redis.cluster,
        timeout_ms=_TIMEOUT_MS,
        max_connections=1,
    )
    admin = LimitAdmin(redis, LimitTable(database))
    try:
        if args.verb in VERBS:
            admin_of_policies = PolicyAdmin(redis, PolicyTable(database))
            return await run_policies_command(
                args, admin_of_policies, sources=settings.identity.scopes
            )
        if args.verb == "list":
            _print_table(await admin.list())
            print_bad(await admin.bad())
            return 0
        if args.verb == "set":
            return await _set(admin, args, rpm=args.rpm, tpm=args.tpm)
        if args.verb == "delete":
            return await _delete(admin, PolicyTable(database), args.service)
        found = await admin.get(args.service)
        if found is not None and args.verb in ("enable", "disable"):
            return await _set(admin, args, enabled=args.verb == "enable")
        return _print_one(found, args.service)
    finally:
        await redis.close()
        await database.close()


async def _set(admin: LimitAdmin, args: argparse.Namespace, **change: Any) -> int:
    try:
        limit = await admin.set(args.service, **change)
    except ValueError as error:
        raise SettingsError(f"limits {args.verb}", str(error)) from error
    return _print_one(limit, args.service)


async def _delete(admin: LimitAdmin, policies: PolicyTable, service: str) -> int:
    if not await admin.delete(service):
        return _print_one(None, service)
    now = datetime.now(UTC)
    found = (await policies.all(service)).policies
    own = sorted(each.name for each in found if each.root == service and each.is_in_force(now))
    if own:
        print(f"deleted the rpm, tpm and status of {service}")
        print(f"{service} is still let in: it has policies of its own ({', '.join(own)})")
    else:
        print(f"deleted {service}: its requests are refused as unknown")
    return 0


def _print_one(limit: ServiceLimit | None, service: str) -> int:
    if limit is None:
        print(f"no such service: {service}", file=sys.stderr)
        return EXIT_NOT_FOUND
    _print_table([limit])
    return 0


def _print_table(limits: list[ServiceLimit]) -> None:
    width = max([len("service_id"), *(len(limit.service_id) for limit in limits)])
    print(f"{'service_id':<{width}}  {'rpm':>12}  {'tpm':>18}  status")
    for limit in limits:
        status = "enabled" if limit.enabled else "disabled"
        print(f"{limit.service_id:<{width}}  {limit.rpm:>12}  {limit.tpm:>18}  {status}")
