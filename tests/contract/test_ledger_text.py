"""What a client may put into a row of the ledger comes out as it was, and does nothing else."""

from sqlalchemy import select

from extproc.core.ledger import UsageEvent
from extproc.core.ledger_event import entry_of
from extproc.providers.registry import provider_of
from extproc.stores.ledger_table import LedgerTable
from extproc.stores.ledger_tables import usage_ledger
from extproc.stores.migrate import upgrade
from extproc.stores.sql import Database
from tests.support.usage_events import ROOT, count, event, rows

_HOSTILE = (
    *("'", '"', "\\", "\\'", "''", "%", "%s", "%(a)s", "%%", ":name", "?", "--", "/*", ";", "`"),
    *(
        "\0",
        "\x1a",
        "\n",
        "\r\n",
        "\t",
        "é",
        "名",
        "\U0001f600",
        "', 1); DROP TABLE ledger_dead; -- ",
    ),
    *("\\', 1); -- ", "NULL", "{}", "\u2028", " ends with a space ", "x" * 256),
)


async def test_text_of_any_kind_is_kept_as_it_is(sql_url: str) -> None:
    upgrade(sql_url)
    database = Database(url=sql_url, timeout_ms=10_000)
    pairs = []
    for number, text in enumerate(_HOSTILE):
        one = UsageEvent(ROOT, f"{number}-0", event(number, request_id=text, model=text))
        pairs.append((entry_of(one, provider_of=provider_of), one))
    for rows_, duplicates in ((len(_HOSTILE), 0), (0, len(_HOSTILE))):
        written = await LedgerTable(database).write(pairs, [])
        assert (written.rows, written.duplicates, written.dead) == (rows_, duplicates, 0)
    table = usage_ledger.c
    query = select(table.request_id, table.model).order_by(table.id)
    found = await database.run(lambda connection: connection.execute(query).all())
    assert [tuple(row) for row in found] == [(text, text) for text in _HOSTILE]
    await database.close()


async def test_a_batch_of_several_megabytes_is_one_transaction(sql_url: str) -> None:
    """More than a packet of SQL may hold."""
    upgrade(sql_url)
    database = Database(url=sql_url, timeout_ms=30_000)
    pairs = []
    for number in range(5000):
        long = f"{number}".rjust(256, "名")
        one = UsageEvent(ROOT, f"{number}-0", event(number, request_id=long, model="名" * 256))
        pairs.append((entry_of(one, provider_of=provider_of), one))
    # The last is there already, in another part than the first.
    await LedgerTable(database).write(pairs[-1:], [])
    written = await LedgerTable(database).write(pairs, [])
    assert (written.rows, written.duplicates, written.dead) == (4999, 1, 0)
    assert count(sql_url, "usage_ledger") == 5000
    assert rows(sql_url, "SELECT SUM(requests), SUM(cost_micros) FROM ledger_hour") == [
        (5000, 35_000)
    ]
    await database.close()
