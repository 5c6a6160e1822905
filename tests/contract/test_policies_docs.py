"""The worked examples of docs/limits.md do what they say, by the command line."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from extproc.cli import main
from extproc.core.buckets import BucketKind, Period, Unit
from extproc.core.policies import Descriptor, Scope
from extproc.stores import keys
from extproc.stores.migrate import upgrade
from extproc.stores.policy_table import PolicyTable
from extproc.stores.sql import Database
from extproc.stores.views import compile_view

DOCS = Path(__file__).parents[2] / "docs" / "limits.md"
EXAMPLES = dict(
    re.findall(r"^### (.+?)\n(?:(?!###).)*?```yaml\n(.+?)```", DOCS.read_text(), re.S | re.M)
)
REQUEST = Descriptor(
    root="acme",
    values={
        Scope.TENANT: "acme",
        Scope.USER: "alice",
        Scope.AGENT: "a1",
        Scope.PROJECT: "search",
        Scope.PROVIDER: "openai",
        Scope.API_KEY: "k1",
    },
    requested_model="gpt-4o",
)
# What the request meets by each: kind, unit, period, limit, enforced, refuses, subject.
WANTED: dict[str, list[tuple[object, ...]]] = {
    "A user's daily quota": [
        (BucketKind.QUOTA, Unit.TOTAL, Period.DAY, 200_000, True, True, "user:alice")
    ],
    "A model's TPM over all users": [
        (BucketKind.SLIDING, Unit.TOTAL, Period.NONE, 300_000, True, True, "tenant:acme")
    ],
    "Agent concurrency": [
        (BucketKind.SLOTS, Unit.SLOT, Period.NONE, 4, True, True, "agent:a1"),
        (BucketKind.BUCKET, Unit.REQUESTS, Period.NONE, 120, True, True, "agent:a1"),
    ],
    "A soft monthly quota": [
        (BucketKind.QUOTA, Unit.COST, Period.MONTH, 50_000_000, True, False, "project:search")
    ],
    "A provider's ceiling across tenants": [
        (BucketKind.MINUTE, Unit.REQUESTS, Period.NONE, 5000, True, True, "provider:openai"),
        (BucketKind.MINUTE, Unit.TOTAL, Period.NONE, 2_000_000, True, True, "provider:openai"),
    ],
    "A shadow trial": [
        (BucketKind.MINUTE, Unit.REQUESTS, Period.NONE, 50, False, True, "api_key:k1")
    ],
}


@pytest.fixture
def sql(sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings for the command; an empty database."""
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", sqlite_url)
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", redis_url)
    upgrade(sqlite_url)
    return sqlite_url


def limits(*words: str) -> int:
    return main(["limits", *words])


def test_the_page_has_six_examples() -> None:
    assert list(EXAMPLES) == list(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_an_example_is_applied_and_limits_what_it_says(
    name: str, sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(EXAMPLES[name])
    assert limits("apply", "-f", str(path), "--dry-run") == 0
    assert capsys.readouterr().out.endswith("1 to change; nothing was written\n")
    assert limits("apply", "-f", str(path)) == 0
    assert capsys.readouterr().out.endswith("1 changed\n")
    assert limits("apply", "-f", str(path)) == 0
    assert capsys.readouterr().out == "0 changed\n"

    import asyncio

    async def resolved() -> list[tuple[object, ...]]:
        database = Database(url=sql)
        found = await PolicyTable(database).all("acme")
        await database.close()
        policies = compile_view(found)
        met = policies.resolve(REQUEST, datetime.now(UTC))
        assert bool(met.across) == ("across" in name)
        buckets = [*met.buckets, *(b for across in met.across.values() for b in across)]
        return [
            (b.kind, b.unit, b.period, b.limit, b.enforced, b.refuses, b.subject) for b in buckets
        ]

    assert asyncio.run(resolved()) == WANTED[name]


def test_the_diff_is_shown_and_the_other_verbs_work(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], redis_client: redis.Redis
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(EXAMPLES["A user's daily quota"])
    limits("apply", "-f", str(path))
    path.write_text(path.read_text().replace("200_000", "5"))
    capsys.readouterr()
    redis_client.sadd(keys.ROOTS, "acme")
    redis_client.hset(keys.config("acme"), "status", "1")
    assert limits("apply", "-f", str(path)) == 0
    assert redis_client.exists(keys.config("acme")) == 0
    out = capsys.readouterr().out
    assert out.startswith("~ user-daily v2: begins ")
    assert "    tokens_per_day.limit: 200000 -> 5\n" in out

    later = "2999-01-01T00:00:00Z"
    assert limits("block", "user", "eve", "--until", later, "--reason", "leaked") == 0
    assert limits("override", "user-daily", "tokens_per_day", "9", "--until", later) == 0
    capsys.readouterr()
    assert limits("policies", "--root", "acme") == 0
    out = capsys.readouterr().out
    assert "user-daily v2: user *each" in out
    assert "tokens_per_day 5" in out
    assert f"blocked user eve until {later}: leaked" in out
    assert f"override user-daily tokens_per_day 9 until {later}" in out
    assert limits("unblock", "user", "eve") == 0
    assert limits("unblock", "user", "eve") == 1
    assert limits("override", "user-daily", "tokens_per_day", "none") == 0
    path.write_text("policies: []")
    assert limits("apply", "-f", str(path)) == 0
    capsys.readouterr()
    assert limits("policies") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["override", "nobody", "rpm", "1", "--until", "2999-01-01"],
            "no policy nobody limits rpm",
        ),
        (["override", "nobody", "rpm", "1"], "--until is needed"),
        (["block", "user", "eve", "--until", "2001-01-01"], "is in the past"),
        (["block", "user", "*each"], "must be one value"),
        (["apply", "-f", "/nowhere.yaml"], "No such file"),
    ],
)
def test_a_wrong_use_says_what_is_wrong(
    sql: str, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert limits(*words) == 2
    assert problem in capsys.readouterr().err


def test_a_wrong_file_changes_nothing(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    good = EXAMPLES["A user's daily quota"]
    path.write_text(good + good.partition("policies:\n")[2].replace("200_000", "-1"))
    assert limits("apply", "-f", str(path)) == 2
    assert f"{path}: policies[1].rules[0].limit: " in capsys.readouterr().err
    assert limits("policies") == 0
    assert capsys.readouterr().out == ""
