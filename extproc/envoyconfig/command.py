"""The arguments of ``tokenweir envoy render``, and the options that they stand for."""

import argparse
from pathlib import Path

from extproc.core.errors import SettingsError
from extproc.core.header_names import IDENTITY_HEADER
from extproc.core.worker_addresses import worker_addresses
from extproc.envoyconfig.options import (
    PROFILES,
    SYSTEM_CA_FILE,
    RenderOptions,
    parse_endpoint,
)


def add_render_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them on the subcommand's parser."""
    add = parser.add_argument
    add(
        "--profile",
        choices=PROFILES,
        default="inline",
        help="how usage is metered (docs/performance.md); native needs Envoy 1.40",
    )
    add(
        "--upstream",
        required=True,
        metavar="URL",
        help="the provider: http(s)://HOST[:PORT][/PATH]",
    )
    add("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="where clients connect")
    add(
        "--tokenweir",
        action="append",
        metavar="ADDR",
        help="where a server listens: HOST:PORT or unix:/path (127.0.0.1:18070); may be repeated",
    )
    add(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="`serve --workers N` listens there and at the addresses after it",
    )
    add("--admin", metavar="HOST:PORT", help="Envoy's admin interface (off without this)")
    add(
        "--upstream-header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="set on requests to the provider; may hold %%ENVIRONMENT(VARIABLE)%%",
    )
    add("--upstream-ca", default=SYSTEM_CA_FILE, metavar="FILE", help="trusted certificates")
    add(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="authenticate clients: one KEY and one service id a line",
    )
    add("--identity-header", default=IDENTITY_HEADER, metavar="NAME")
    add(
        "--trusted-header",
        action="append",
        default=[],
        metavar="NAME",
        help="a header for policies' scopes that a filter of this Envoy sets; removed from what "
        "clients send; may be repeated",
    )
    add(
        "--front-header",
        action="append",
        default=[],
        metavar="NAME",
        help="the same, but believed as it comes: only for one that a proxy in front of this Envoy "
        "sets in place of what clients send, if no client can reach this Envoy past that proxy",
    )
    add(
        "--idempotency-header",
        metavar="NAME",
        help="the header with a client's own key, as in the setting admission.idempotency_header",
    )
    add("--max-body-bytes", type=int, default=RenderOptions.max_body_bytes, metavar="N")
    add(
        "--failure-mode",
        choices=["closed", "open"],
        default="closed",
        help="what a request meets when the server does not answer: 503, or it passes",
    )
    add(
        "--unmetered",
        action="append",
        default=[],
        metavar="PATH",
        help="a path below which nothing is counted, such as /v1/models",
    )
    add("--access-log", metavar="FILE", help="a JSON line for each request, such as /dev/stdout")
    add(
        "--access-log-flush-seconds",
        type=float,
        default=RenderOptions.access_log_flush_seconds,
        metavar="N",
        help="how often a stream that runs keeps its reservation (default 60)",
    )
    add("--no-health-check", action="store_true", help="do not ask the server for its health")


def read_api_keys(path: Path) -> dict[str, str]:
    """Keys and service ids from a file: two words a line, ``#`` begins a comment line."""
    keys: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("api_keys", f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise SettingsError("api_keys", f"{path}:{number}: expected a key and a service id")
        if words[0] in keys:
            raise SettingsError("api_keys", f"{path}:{number}: this key stands there twice")
        keys[words[0]] = words[1]
    if not keys:
        raise SettingsError("api_keys", f"{path} holds no key")
    return keys


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not value.strip():
        raise SettingsError("upstream_headers", f"{name!r}: expected NAME: VALUE")
    return name.strip().lower(), value.strip()


def options_from_args(args: argparse.Namespace) -> RenderOptions:
    """The options of a parsed command line. SettingsError names what is wrong."""
    listen = parse_endpoint("listen", args.listen)
    admin = parse_endpoint("admin", args.admin) if args.admin is not None else None
    for key, endpoint in (("listen", listen), ("admin", admin)):
        if endpoint is not None and endpoint.is_name:
            raise SettingsError(key, "Envoy listens on an address, not on a name")
        if endpoint is not None and endpoint.socket_path is not None:
            raise SettingsError(key, "expected HOST:PORT")
    return RenderOptions(
        profile=args.profile,
        upstream_url=args.upstream,
        listen_host=listen.host,
        listen_port=listen.port,
        admin_host=admin.host if admin is not None else RenderOptions.admin_host,
        admin_port=admin.port if admin is not None else None,
        tokenweir_addresses=tuple(
            each
            for first in args.tokenweir or RenderOptions.tokenweir_addresses
            for each in worker_addresses("tokenweir_addresses", first, args.workers)
        ),
        tokenweir_health_check=not args.no_health_check,
        upstream_headers=dict(map(_header, args.upstream_header)),
        upstream_ca_file=args.upstream_ca,
        api_keys=read_api_keys(args.api_keys) if args.api_keys is not None else None,
        identity_header=args.identity_header,
        trusted_headers=tuple(args.trusted_header),
        front_headers=tuple(args.front_header),
        idempotency_header=args.idempotency_header,
        max_body_bytes=args.max_body_bytes,
        failure_mode=args.failure_mode,
        unmetered_prefixes=tuple(args.unmetered),
        access_log_path=args.access_log,
        access_log_flush_seconds=args.access_log_flush_seconds,
    )
