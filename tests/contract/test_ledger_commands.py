"""`tokenweir ledger` on rows that the writer's table has taken, over every SQL store."""

import json

import pytest

from extproc.cli import main
from extproc.core.ledger import UsageEvent
from extproc.core.ledger_event import entry_of
from extproc.providers.registry import provider_of
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database
from tests.support.usage_events import event

# 10 tokens at 2.5 USD and 20 at 10 USD for a million: 25 and 200 micro-USD, each rounded up.
_COST = 25 + 200
_PERIOD = ("--from", "2026-01-01", "--to", "2026-01-02")


async def _write(sql_url: str, events: list[dict[str, str]]) -> None:
    upgrade(sql_url)
    database = Database(url=sql_url)
    pairs = []
    for number, fields in enumerate(events):
        one = UsageEvent(fields["root"], f"1-{number}", fields)
        pairs.append((entry_of(one, provider_of=provider_of), one))
    await LedgerTable(database).write(pairs, [])
    await database.close()


@pytest.fixture
def config(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", sql_url)
    return sql_url


async def _bill(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, object]]:
    status = main(["ledger", "bill", "--tenant", "svc-1", *_PERIOD, "--format", "json", *more])
    return status, json.loads(capsys.readouterr().out)


async def test_a_bill_is_what_was_charged_computed_again(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await _write(
        config,
        [
            event(1, cost=_COST),
            event(2, cost=_COST, kinds=""),
            # Better knowledge: ten tokens more of output.
            event(2, revision=2, input=0, output=10, cost=100, kinds="", reserved=0),
            event(3, root="svc-2", cost=_COST),
        ],
    )
    status, bill = await _bill(capsys)
    assert bill["total_micros"] == 2 * _COST + 100
    assert bill["discrepancies"] == []
    assert status == 0


async def test_a_charge_that_the_prices_do_not_explain_is_named(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await _write(config, [event(1, cost=_COST), event(2, cost=_COST + 1)])
    status, bill = await _bill(capsys)
    assert status == 1
    assert [one["request_id"] for one in bill["discrepancies"]] == ["req-2"]  # type: ignore[attr-defined]


async def test_rows_of_other_days_and_tenants_are_not_on_a_bill(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    day = 86_400_000
    first = 1_767_225_600_000
    await _write(
        config,
        [
            event(1, at=first - 1000, cost=_COST),
            event(2, at=first, cost=_COST),
            event(3, at=first + day - 1000, cost=_COST),
            event(4, at=first + day, cost=_COST),
        ],
    )
    _, bill = await _bill(capsys)
    assert bill["requests"] == 2
    assert bill["total_micros"] == 2 * _COST


def test_without_its_tables_it_says_what_to_run(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENWEIR_DATABASE__URL", f"sqlite:///{tmp_path}/none.db")
    assert main(["ledger", "bill", "--tenant", "svc-1", *_PERIOD]) == 3
    assert "db upgrade" in capsys.readouterr().err
