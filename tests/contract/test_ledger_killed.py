"""The real command `work` writes the ledger, and is killed at random moments; or SQL is."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from sqlalchemy import create_engine, text

from extproc.demo.processes import clean_environment
from extproc.stores import keys
from extproc.stores.migrate import upgrade
from tests.support.mariadb import OwnServer, make_database
from tests.support.usage_events import ROOT, append, count, event, rows

_EVENTS = 6000
_DEADLINE_SECONDS = 90.0


def start_work(redis_url: str, sql_url: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {
        **clean_environment(),
        "TOKENWEIR_REDIS__URL": redis_url,
        "TOKENWEIR_DATABASE__URL": sql_url,
        "TOKENWEIR_LEDGER__ENABLED": "true",
        "TOKENWEIR_LEDGER__BATCH_EVENTS": "100",
        "TOKENWEIR_LEDGER__INTERVAL_SECONDS": "0.05",
        "TOKENWEIR_LEDGER__RECLAIM_SECONDS": "1",
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "extproc.cli", "work"], env=environment, stderr=output
        )


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < until, log.read_text(errors="replace")[-3000:]
        time.sleep(0.02)


def is_whole(sql_url: str, number: int) -> bool:
    """Every event is one row, and counted once."""
    sums = rows(sql_url, "SELECT SUM(requests), SUM(cost_micros) FROM ledger_hour")
    return count(sql_url, "usage_ledger") == number and sums == [(number, 7 * number)]


def test_killed_at_random_moments_under_load_it_writes_every_event_once(
    redis_url: str, redis_client: redis.Redis, mariadb_url: str, tmp_path: Path
) -> None:
    upgrade(mariadb_url)
    dice, log = random.Random(5), tmp_path / "work.log"
    given = killed = 0
    while given < _EVENTS:
        work = start_work(redis_url, mariadb_url, log)
        try:
            before = count(mariadb_url, "usage_ledger")
            batch = min(_EVENTS - given, 1500)
            append(redis_client, (event(given + i) for i in range(batch)))
            given += batch
            # It is at work; the moment within its work is anyone's.
            wait_until(lambda: count(mariadb_url, "usage_ledger") > before, log)  # noqa: B023
            time.sleep(dice.random() * 0.1)
        finally:
            work.kill()
            work.wait()
        killed += 1
    assert killed >= 4
    work = start_work(redis_url, mariadb_url, log)
    try:
        wait_until(lambda: not redis_client.exists(keys.events(ROOT)), log)
    finally:
        work.send_signal(signal.SIGTERM)
        assert work.wait(timeout=30) == 0, log.read_text(errors="replace")[-3000:]
    assert is_whole(mariadb_url, _EVENTS)


@pytest.mark.skipif(shutil.which("mariadbd") is None, reason="a given server is not ours to kill")
def test_a_database_that_is_killed_and_comes_back_has_every_event_once(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """Killed in the middle of transactions and commits; what was acknowledged is committed."""
    dice, log = random.Random(7), tmp_path / "work.log"
    with OwnServer(tmp_path, durable=True) as server:
        sql_url = make_database(server.url)
        upgrade(sql_url)
        given, batch = 0, _EVENTS // 3
        work = start_work(redis_url, sql_url, log)
        try:
            for _ in range(3):
                before = count(sql_url, "usage_ledger")
                append(redis_client, (event(given + i) for i in range(batch)))
                given += batch
                wait_until(lambda: count(sql_url, "usage_ledger") > before, log)  # noqa: B023
                time.sleep(dice.random() * 0.1)
                server.kill()
                assert redis_client.exists(keys.events(ROOT))  # it had more to do
                server.start()
            wait_until(lambda: not redis_client.exists(keys.events(ROOT)), log)
        finally:
            work.send_signal(signal.SIGTERM)
            assert work.wait(timeout=30) == 0, log.read_text(errors="replace")[-3000:]
        assert "ledger_write_failed" in log.read_text()
        assert is_whole(sql_url, _EVENTS)


@pytest.mark.skipif("TOKENWEIR_TEST_MYSQL_URL" in os.environ, reason="not ours to disturb")
def test_connections_that_sql_ends_cost_nothing(
    redis_url: str, redis_client: redis.Redis, mariadb_url: str, tmp_path: Path
) -> None:
    """As a restart does it: what was not committed is rolled back, in the middle of the work."""
    upgrade(mariadb_url)
    log = tmp_path / "work.log"
    append(redis_client, (event(i) for i in range(_EVENTS)))
    work = start_work(redis_url, mariadb_url, log)
    engine = create_engine(mariadb_url, isolation_level="AUTOCOMMIT")
    ended = 0

    def end_connections() -> bool:
        nonlocal ended
        with engine.connect() as connection:
            others = connection.execute(
                text(
                    "SELECT id FROM information_schema.processlist"
                    " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
                )
            ).scalars()
            for one in others.all():
                try:
                    connection.execute(text(f"KILL {one}"))
                    ended += 1
                except Exception:  # noqa: BLE001  # it went by itself
                    continue
        return ended >= 5 or not redis_client.exists(keys.events(ROOT))

    try:
        wait_until(end_connections, log)
        wait_until(lambda: not redis_client.exists(keys.events(ROOT)), log)
    finally:
        engine.dispose()
        work.send_signal(signal.SIGTERM)
        work.wait(timeout=30)
    assert ended >= 1
    assert is_whole(mariadb_url, _EVENTS)
