"""`tokenweir limits` for an administrator who made, or found, a mistake."""

from pathlib import Path

import pytest
import redis
from sqlalchemy import create_engine, text

from extproc.cli import main
from extproc.stores import keys
from extproc.stores.migrate import upgrade

GOOD = """
root: acme
policies:
  - name: %s
    scope: user
    value: "*each"
    rules: [{dimension: rpm, limit: 1}]
"""


@pytest.fixture
def sql(sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings for the command; an empty database."""
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", sqlite_url)
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", redis_url)
    upgrade(sqlite_url)
    return sqlite_url


def limits(*words: str) -> int:
    return main(["limits", *words])


def write(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_a_service_is_deleted_and_its_cache_forgotten(
    sql: str, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    assert limits("set", "acme", "--rpm", "1", "--tpm", "1") == 0
    redis_client.hset(keys.config("acme"), "status", "1")
    capsys.readouterr()
    assert limits("delete", "acme") == 0
    assert capsys.readouterr().out == "deleted acme: its requests are refused as unknown\n"
    assert redis_client.exists(keys.config("acme")) == 0
    assert limits("get", "acme") == 1
    # Again, for a run whose clearing of the cache failed.
    redis_client.hset(keys.config("acme"), "status", "1")
    assert limits("delete", "acme") == 1
    assert "no such service: acme" in capsys.readouterr().err
    assert redis_client.exists(keys.config("acme")) == 0


def test_a_delete_says_that_policies_still_let_the_service_in(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    for name, root in (("users", "acme"), ("others", "acme-2")):
        path.write_text((GOOD % name).replace("acme", root))
        assert limits("apply", "-f", str(path)) == 0
    assert limits("set", "acme", "--rpm", "1", "--tpm", "1") == 0
    capsys.readouterr()
    assert limits("delete", "acme") == 0
    assert capsys.readouterr().out.splitlines() == [
        "deleted the rpm, tpm and status of acme",
        "acme is still let in: it has policies of its own (users)",
    ]


def test_what_a_file_ends_because_it_leaves_it_out_is_said(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    for name, ended in (("first", False), ("second", True)):
        path.write_text(GOOD % name)
        for words, verb in ((["--dry-run"], "would end"), ([], "ends")):
            assert limits("apply", "-f", str(path), *words) == 0
            out = capsys.readouterr().out
            assert (f"{verb} 1 policy that is not in this file\n" in out) is ended


def test_a_scope_that_nothing_gives_a_value_is_warned_of(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(GOOD % "users")
    warning = "warning: users: identity.scopes.user is not in the settings"
    for words in (["--dry-run"], []):
        assert limits("apply", "-f", str(path), *words) == 0
        assert warning in capsys.readouterr().err
    assert limits("block", "user", "mallory") == 0
    assert "warning: block of mallory: identity.scopes.user" in capsys.readouterr().err
    for scope in ("service", "model", "provider"):
        path.write_text((GOOD % f"of-{scope}").replace("scope: user", f"scope: {scope}"))
        assert limits("apply", "-f", str(path)) == 0
    source = '{"user": [{"kind": "header", "name": "x-user"}]}'
    monkeypatch.setenv("TOKENWEIR_IDENTITY__SCOPES", source)
    path.write_text(GOOD % "users")
    assert limits("apply", "-f", str(path)) == 0
    assert capsys.readouterr().err == ""


def test_a_number_of_many_digits_is_not_printed(
    sql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        limits("override", "p", "rpm", "9" * 5000)
    shown = capsys.readouterr().err
    assert "LIMIT: no limit, nor none: 99999" in shown
    assert len(shown) < 1000


def test_a_delete_that_could_not_clear_the_cache_says_so(
    sql: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert limits("set", "acme", "--rpm", "1", "--tpm", "1") == 0
    monkeypatch.setenv("TOKENWEIR_REDIS__URL", "redis://127.0.0.1:1/0")
    assert limits("delete", "acme") == 3
    assert "deleted, but the cache was not cleared" in capsys.readouterr().err
    monkeypatch.undo()


def test_a_delete_that_cannot_be_committed_deletes_nothing_in_redis(
    sql: str, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    assert limits("set", "acme", "--rpm", "1", "--tpm", "1") == 0
    redis_client.hset(keys.config("acme"), "status", "1")
    write(
        sql,
        "CREATE TRIGGER stop BEFORE DELETE ON service_limit BEGIN SELECT RAISE(FAIL, 'no'); END",
    )
    assert limits("delete", "acme") == 3
    assert redis_client.exists(keys.config("acme")) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["set", "across:provider:openai", "--rpm", "1", "--tpm", "1"],
        ["block", "user", "eve", "--root", "across:provider:openai"],
        ["apply", "-f", "FILE"],
    ],
)
def test_what_all_services_share_is_no_service(
    sql: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text((GOOD % "p").replace("root: acme", 'root: "across:provider:openai"'))
    try:
        status = limits(*(str(path) if word == "FILE" else word for word in words))
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2
    assert "across:" in capsys.readouterr().err
    assert limits("list") == 0
    assert "across:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "until", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "soon", "2026-13-01"]
)
def test_an_end_that_cannot_be_is_a_wrong_use(
    sql: str, until: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        limits("block", "user", "eve", "--until", until)
    assert ended.value.code == 2
    assert "not a time" in capsys.readouterr().err


def test_text_that_a_terminal_would_act_on_is_no_reason(
    sql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for reason in ("a\nb", "\x1b[31m", "\udcff"):
        assert limits("block", "user", "eve", "--reason", reason) == 2
    assert limits("block", "user", "\udcff") == 2
    assert limits("unblock", "user", "\udcff") in (1, 2)
    assert limits("override", "\udcff", "rpm", "none") == 2


def test_what_cannot_be_read_is_shown_and_found_by_check(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(GOOD % "good")
    assert limits("apply", "-f", str(path)) == 0
    path.write_text((GOOD % "spoilt").replace("acme", "other"))
    assert limits("apply", "-f", str(path)) == 0
    assert limits("set", "svc", "--rpm", "1", "--tpm", "1") == 0
    capsys.readouterr()
    assert limits("check") == 0
    assert capsys.readouterr().out == "everything can be read, and there is room for it\n"
    write(
        sql,
        "UPDATE limit_policy SET rules = 'x' WHERE name = 'spoilt'",
        "UPDATE service_limit SET rpm = -1",
        "INSERT INTO block (scope, value, reason) VALUES ('planet', 'mars', '')",
        'INSERT INTO limit_override (policy, dimension, "limit", until)'
        " VALUES ('good', 'gpu', 1, '2999-01-01 00:00:00.000000')",
    )
    assert limits("check") == 5
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in shown] == [
        "cannot be read, root refused: service_limit id 1",
        "cannot be read, root refused: limit_policy id 2",
        "cannot be read, left out: block id 1",
        "cannot be read, left out: limit_override id 1",
    ]
    assert "(spoilt, root other): JSONDecodeError" in shown[1]
    assert limits("policies") == 0
    out = capsys.readouterr().out
    assert "good v1: user *each" in out
    assert "\n".join(shown[1:]) in out
    assert limits("list") == 0
    assert shown[0] in capsys.readouterr().out
    # The file that it came from mends it.
    assert limits("apply", "-f", str(path), "--dry-run") == 0
    out = capsys.readouterr().out
    assert "- spoilt: ends" in out
    assert "it cannot be read: JSONDecodeError" in out
    assert "+ spoilt v2: begins" in out
    assert limits("apply", "-f", str(path)) == 0
    assert limits("set", "svc", "--rpm", "1", "--tpm", "1") == 0
    capsys.readouterr()
    assert limits("check") == 5
    assert [line.split()[5] for line in capsys.readouterr().out.splitlines()] == [
        "block",
        "limit_override",
    ]


def test_a_file_without_room_names_the_policies(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    one = (GOOD % "p0").partition("policies:\n")[2]
    path.write_text(GOOD % "p0" + "".join(one.replace("p0", f"p{i}") for i in range(1, 62)))
    for more in ([], ["--dry-run"]):
        assert limits("apply", "-f", str(path), *more) == 2
        said = capsys.readouterr().err
        assert (
            f"{path}: policies: one request could meet 62 limits of policies at root acme" in said
        )
        assert "at most 61 have room there: p0 (1), p1 (1)" in said
    assert limits("policies") == 0
    assert capsys.readouterr().out == ""


def test_a_service_that_cannot_be_and_was_written_by_hand_can_be_deleted(
    sql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "across:provider:openai"
    write(sql, f"INSERT INTO service_limit (service_id, rpm, tpm) VALUES ('{name}', 1, 1)")
    assert limits("disable", name) == 2
    assert "wrong setting: limits disable: across:provider:openai" in capsys.readouterr().err
    assert limits("delete", name) == 0
    assert limits("get", name) == 1


def test_an_override_needs_an_end_and_none_ends_only_one_that_is(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(GOOD % "p")
    assert limits("apply", "-f", str(path)) == 0
    capsys.readouterr()
    assert limits("override", "p", "rpm", "5") == 2
    said = capsys.readouterr().err
    assert said == "tokenweir: limits override: --until is needed with a number\n"
    assert limits("override", "p", "rpm", "none") == 1
    assert capsys.readouterr().err == "no override: p rpm\n"
    assert limits("override", "p", "rpm", "5", "--until", "2999-01-01T00:00:00Z") == 0
    assert limits("override", "p", "rpm", "none") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "p rpm: override ended"
    assert limits("override", "nobody", "rpm", "none") == 2
