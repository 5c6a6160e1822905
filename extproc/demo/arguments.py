"""Command-line options of ``tokenweir up`` and ``tokenweir demo``. Imports nothing heavy, because
the command line reads it for every command."""

import argparse
from pathlib import Path


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say where the stack listens and what it leaves behind."""
    parser.add_argument(
        "--envoy-port", type=int, metavar="PORT", help="where Envoy listens (default: a free port)"
    )
    parser.add_argument("--profile", choices=["inline"], default="inline", help="metering profile")
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="keep the database, the configuration and the logs here (default: a temporary folder)",
    )


def add_upstream_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say which provider the stack calls."""
    parser.add_argument("--upstream", metavar="URL", help="a real provider instead of the fake one")
    parser.add_argument(
        "--upstream-key-env",
        metavar="NAME",
        help="environment variable that holds the provider's key; Envoy reads it when it starts",
    )
    parser.add_argument(
        "--upstream-key-header",
        choices=["authorization", "x-api-key"],
        default="authorization",
        help="how the provider takes its key: as a bearer token, or in x-api-key",
    )
