"""``tokenweir up``: the stack until Ctrl-C, with a text that says how to use it."""

import argparse
import shlex
import sys
import time
from pathlib import Path

from extproc.core.errors import SettingsError
from extproc.demo import own_settings
from extproc.demo.processes import (
    ChildError,
    check_port,
    clean_environment,
    stop_on_signals,
)
from extproc.demo.stack import DEFAULT_LIMITS, DEFAULT_SERVICES, Stack, demo_key
from extproc.settings import load_settings

_MESSAGES = '"messages":[{"role":"user","content":"Hello"}]'
_JSON_TYPE = "-H 'content-type: application/json'"


def up(args: argparse.Namespace) -> int:
    """Run the stack until Ctrl-C or SIGTERM; exit status 1 when it does not start.

    Raises SettingsError for an option that cannot work, or a wrong setting.
    """
    if args.envoy_port is not None:
        check_port("--envoy-port", args.envoy_port)
    headers = _upstream_headers(args)
    settings = load_settings(args.config)
    variables = own_settings.child_variables(settings)
    stop_on_signals()
    try:
        with Stack(
            run_dir=args.run_dir,
            envoy_port=args.envoy_port,
            upstream_url=args.upstream,
            upstream_headers=headers,
            serve_env=variables,
            work_env=variables,
            envoy_options={"profile": args.profile, **own_settings.envoy_options(settings)},
        ) as stack:
            for service, (rpm, tpm) in DEFAULT_LIMITS.items():
                stack.set_limits(service, rpm=rpm, tpm=tpm)
            print(welcome(stack, own_settings.notice(settings)), flush=True)
            _wait_for_interrupt()
            print("\nstopping", flush=True)
    except ChildError as error:
        print(f"tokenweir up: {error}", file=sys.stderr)
        return 1
    return 0


def _upstream_headers(args: argparse.Namespace) -> dict[str, str]:
    option, name = "--upstream-key-env", args.upstream_key_env
    if name is None:
        return {}
    if args.upstream is None:
        raise SettingsError(option, f"{name} would be for the provider that --upstream names")
    # Envoy would send a "-" in its place.
    if not clean_environment().get(name):
        raise SettingsError(option, f"the environment has no variable {name}")
    key = f"%ENVIRONMENT({name})%"
    bearer = args.upstream_key_header == "authorization"
    return {args.upstream_key_header: f"Bearer {key}" if bearer else key}


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


def welcome(stack: Stack, notice: str = "") -> str:
    """Where everything is, requests to try, how limits are changed and refusals explained.

    ``notice`` stands before the last line."""
    keys = "\n".join(
        f"  {demo_key(service)}  {rpm} requests and {tpm} tokens a minute"
        for service, (rpm, tpm) in DEFAULT_LIMITS.items()
    )
    going = " (removed at the end; --run-dir DIR keeps them)" if stack.is_temporary else ""
    return f"""\
Envoy      {stack.base_url}
provider   {stack.provider_url}
metrics    {stack.metrics_url}
admin      {stack.admin_url} (Envoy's own)
Redis      {stack.redis_url}
database   {stack.database_url}
logs       {stack.run_dir}{going}

API keys
{keys}

Try
{_examples(stack)}

Change limits, in force for the next request (in another terminal)
  export TOKENWEIR_REDIS__URL={shlex.quote(stack.redis_url)}
  export TOKENWEIR_DATABASE__URL={shlex.quote(stack.database_url)}
  {_this_command()} limits set {DEFAULT_SERVICES[0]} --rpm 60 --tpm 10000

Why was a request refused? (with the same two variables)
  {_this_command()} explain REQUEST_ID  # x-request-id of the answer

{notice}Ctrl-C stops everything."""


def _examples(stack: Stack) -> str:
    chat, small = (demo_key(service) for service in DEFAULT_SERVICES)
    post = f"curl -si {stack.base_url}/v1"
    bearer = f"-H 'authorization: Bearer {chat}' {_JSON_TYPE}"
    if not stack.has_real_upstream:
        return f"""\
  {post}/chat/completions {bearer} \\
    -d '{{"model":"gpt-4o",{_MESSAGES}}}'
  {post}/chat/completions -N {bearer} \\
    -H 'x-fake: output=40;chunk_delay_ms=50' -d '{{"model":"gpt-4o","stream":true,{_MESSAGES}}}'
  {post}/messages -H 'x-api-key: {small}' {_JSON_TYPE} \\
    -d '{{"model":"claude-opus-4-8","max_tokens":900,{_MESSAGES}}}'"""
    if "x-api-key" in stack.upstream_headers:
        call = f"{post}/messages -H 'x-api-key: {chat}' -H 'anthropic-version: 2023-06-01'"
        call, cap = f"{call} {_JSON_TYPE}", '"max_tokens":100,'
    else:
        call, cap = f"{post}/chat/completions {bearer}", ""
    return f"""\
  export MODEL=...  # one of the provider's
  {call} \\
    -d '{{"model":"'$MODEL'",{cap}{_MESSAGES}}}'"""


def _this_command() -> str:
    """How this program was called: it need not be on the PATH."""
    program = Path(sys.argv[0]).absolute()
    if program.name == "tokenweir":
        return shlex.quote(str(program))
    return f"{shlex.quote(sys.executable)} -m extproc.cli"
