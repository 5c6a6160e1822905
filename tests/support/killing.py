"""A stack whose server or reaper is killed at a chosen step, and the books that it leaves."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import redis

from extproc.core.reservations import Knowledge
from extproc.demo.stack import Stack
from extproc.stores import keys
from extproc.stores.limit_table import LimitTable
from extproc.stores.sql import Database
from tests.support.client import CHAT, Answer, StackClient, eventually
from tests.support.engine import Counters
from tests.support.faulty_serve import VARIABLE

REAPER_SECONDS = 1.5
# The model says which limits a request meets: those of its own root only, a ceiling at each of two
# other roots too, or two such of which the second refuses.
ALONE, SHARED, REFUSED = "gpt-4.1", "gpt-4o", "gpt-4o-mini"
# "Say hi" is 9 tokens with its frame.
INPUT_TOKENS, CAP_TOKENS, OUTPUT_TOKENS = 9, 20, 12
RESERVED_TOKENS, USED_TOKENS = INPUT_TOKENS + CAP_TOKENS, INPUT_TOKENS + OUTPUT_TOKENS

_RULES = [
    {"dimension": "rpm", "limit": 100},
    {"dimension": "total_tpm", "limit": 10_000},
    {"dimension": "tokens_per_day", "limit": 100_000},
    {"dimension": "concurrent", "limit": 1},
]
_CEILING = {"across_roots": True, "model": "gpt-4o*", "rules": _RULES}
_POLICIES = [
    {"name": "own", "scope": "service", "value": "*each", "rules": _RULES},
    {"name": "models", "scope": "model", "value": "*each", **_CEILING},
    {"name": "openai", "scope": "provider", "value": "openai", **_CEILING},
    {
        "name": "none",
        "scope": "provider",
        "value": "openai",
        "across_roots": True,
        "model": REFUSED,
        "rules": [{"dimension": "input_tpm", "limit": 1}],
    },
]


def other_roots(model: str) -> tuple[str, ...]:
    """The other roots that a request for ``model`` asks, in their order."""
    return () if model == ALONE else (f"across:model:{model}", "across:provider:openai")


class End(Enum):
    """How a reservation may stand at one root in the end: the requests and tokens that stay counted
    there, and the rank of the knowledge; without a rank there is no record."""

    NEVER = (0, 0, None)
    UNDONE = (0, 0, Knowledge.KNOWN)
    RELEASED = (1, 0, Knowledge.KNOWN)
    GUESSED = (1, RESERVED_TOKENS, Knowledge.GUESSED)
    EXACT = (1, USED_TOKENS, Knowledge.KNOWN)


@contextmanager
def killing_stack(
    run_dir: Path, services: tuple[str, ...], *, first_step: str
) -> Iterator["KillingStack"]:
    """A stack whose server will be killed at ``first_step``, unless another trap is set before."""
    module = [sys.executable, "-m", "tests.support.faulty_serve"]
    stack = Stack(
        run_dir=run_dir,
        services=services,
        reaper_deadline_seconds=REAPER_SECONDS,
        serve_env={
            VARIABLE: first_step,
            # On a busy machine too, it is the kill that ends a request, and no time-out.
            "TOKENWEIR_ADMISSION__TIMEOUT_MS": "8000",
            "TOKENWEIR_REDIS__TIMEOUT_MS": "4000",
        },
        envoy_options={"admission_timeout_ms": 10_000, "metering_timeout_ms": 10_000},
        commands={"serve": [*module, "serve"], "work": [*module, "work"]},
    )
    with stack, redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        asyncio.run(_set_up(stack))
        policies = run_dir / "policies.yaml"
        policies.write_text(json.dumps({"policies": _POLICIES}))  # JSON is YAML
        stack.cli("limits", "apply", "-f", str(policies))
        yield KillingStack(stack, connection, first_step=first_step)


async def _set_up(stack: Stack) -> None:
    database = Database(url=stack.database_url)
    table = LimitTable(database)
    for service in stack.services:
        await table.put(service, rpm=1000, tpm=1_000_000)
    await database.close()


class KillingStack:
    """``stack`` and what tests do with it."""

    def __init__(self, stack: Stack, connection: "redis.Redis", *, first_step: str) -> None:
        self.stack = stack
        self.redis = connection
        self._steps = {"serve": first_step, "work": ""}

    def set_trap(self, child: str, step: str) -> None:
        """Have ``child`` run, such that ``step`` kills it; an empty step: nothing does."""
        if self.stack.child(child).running:
            if self._steps[child] == step:
                return
            self.stack.stop_one(child)
        self._steps[child] = step
        self.stack.start_again(child, env={VARIABLE: step})

    def wait_killed(self, child: str) -> None:
        """The step was reached: ``child`` was ended by SIGKILL."""
        eventually(lambda: not self.stack.child(child).running)
        assert self.stack.child(child).exit_status == -signal.SIGKILL

    def forget_all(self) -> None:
        """Empty Redis."""
        self.redis.flushdb()

    def ask(self, service: str, model: str, fake: str = "") -> Answer:
        """A streamed request; Envoy always answers it."""
        client = StackClient(self.stack, service, self.redis)
        body = {**CHAT, "model": model, "stream": True, "max_tokens": CAP_TOKENS}
        return client.post(body, fake=f"output={OUTPUT_TOKENS};{fake}")

    def journal(self, label: str) -> list[dict[str, Any]]:
        """What the provider did for the request with this label."""
        return StackClient(self.stack, "", self.redis).journal(label)

    def is_clear(self) -> bool:
        """Nothing is open at any root: no reservation, no slot, nothing held of a quota."""
        if any(self.redis.zcard(name) for name in self.redis.scan_iter(keys.pending("*"))):
            return False
        return not any(
            kind == "slots" or (kind == "quota" and int(value["held"]))
            for kind, _, value in self._counters("*")
        )

    def end_at(self, root: str) -> End:
        """How the only request that there was stands at ``root``, by its record and by every
        counter, which all must say the same."""
        records = self._records(root)
        requests: set[int] = set()
        tokens: set[int] = set()
        for kind, key, value in self._counters(root):
            counted = int(value["used"] if kind == "quota" else value)
            (requests if "rpm" in key else tokens).add(counted)
        if not records:
            assert not requests
            assert not tokens
            return End.NEVER
        (record,) = records
        (one,), (sum_of_tokens,) = requests, tokens
        assert int(record["charged"]) == sum_of_tokens, record
        assert (record["state"] == "RELEASED") == (sum_of_tokens == 0), record
        return End((one, sum_of_tokens, Knowledge(int(record["rank"]))))

    def immortal(self) -> set[str]:
        """Keys without a TTL."""
        return set(Counters(self.redis).without_ttl())

    def _counters(self, root: str) -> Iterator[tuple[str, str, Any]]:
        for key, value in Counters(self.redis).state().items():
            if root == "*" or f"{{{root}}}" in key:
                yield key.partition(":")[0], key, value

    def _records(self, root: str) -> list[dict[str, Any]]:
        """Without what only remembers that a release came before its reservation."""
        names = self.redis.scan_iter(keys.reservation_prefix(root) + "*")
        found: list[Any] = [self.redis.hgetall(name) for name in names]
        return [record for record in found if record["minute"]]
