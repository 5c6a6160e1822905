"""SQL access: a synchronous engine in a small pool of threads, errors converted once.

Threads, because SQL is off the hot path: only a cold lookup and an administrator's change reach it.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from sqlite3 import SQLITE_BUSY, SQLITE_CANTOPEN, SQLITE_FULL, SQLITE_IOERR, SQLITE_LOCKED
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy import exc as sql_errors

from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.stores.sql_lock import only_writer

T = TypeVar("T")

_MYSQL = ("mysql", "mariadb")
_SQLITE = "sqlite:///"
_NO_NEW_FILE = {"mode": "rw", "uri": "true"}
# MySQL: access denied (three kinds), unknown database, command denied: waiting does not help.
_MYSQL_FINAL = {1044, 1045, 1049, 1142, 1698}
_MYSQL_NO_TABLE = 1146
_SQLITE_TRANSIENT = {SQLITE_BUSY, SQLITE_LOCKED, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN}

# SQLAlchemy ends its texts with an address of its documentation.
_BACKGROUND = re.compile(r"\(Background on this error at: \S*\)")


def database_url(url: str) -> URL:
    """Parse ``url``; MySQL and MariaDB are reached by pymysql. Raises SettingsError."""
    try:
        parsed = make_url(url)
    except (sql_errors.ArgumentError, ValueError) as error:
        raise SettingsError("database.url", str(error)) from error
    backend = parsed.get_backend_name()
    if backend in _MYSQL:
        return parsed.set(drivername=f"{backend}+pymysql")
    if backend != "sqlite":
        raise SettingsError("database.url", f"{backend} is not supported: mysql, mariadb or sqlite")
    if parsed.database in (None, "", ":memory:"):
        raise SettingsError("database.url", "SQLite needs a file: sqlite:///path/to/file.db")
    return parsed


def shown_url(url: str) -> str:
    """``url`` as it may be printed: without password and options, SQLite's file as a whole path."""
    parsed = database_url(url)
    if parsed.get_backend_name() in _MYSQL:
        # Options are left out too: they may hold another password.
        return URL.create(
            parsed.drivername,
            username=parsed.username,
            host=parsed.host,
            port=parsed.port,
            database=parsed.database,
        ).render_as_string()
    return f"{_SQLITE}{Path(parsed.database or '').absolute()}"


def make_engine(
    url: str, *, pool_size: int = 1, timeout_ms: int = 2000, recycle_seconds: int = 1800
) -> Engine:
    """An engine on which the time-out bounds every wait: connect, read, write, lock, pool."""
    parsed = database_url(url)
    seconds = timeout_ms / 1000
    options: dict[str, Any] = {}
    if parsed.get_backend_name() in _MYSQL:
        options["isolation_level"] = "READ COMMITTED"
        options["connect_args"] = {
            "connect_timeout": seconds,
            "read_timeout": seconds,
            "write_timeout": seconds,
        }
    else:
        options["connect_args"] = {"timeout": seconds}
    engine = create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=seconds,
        pool_pre_ping=True,
        pool_recycle=recycle_seconds,
        **options,
    )
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _read_any_text)
    return engine


def _read_any_text(connection: Any, _: object) -> None:
    """SQLite keeps any bytes as text; those that are none must not fail a whole SELECT."""
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")


class Database:
    """Runs functions on a connection, each in a transaction of its own; makes no database.

    A call answers, or fails, within three time-outs: a thread may have to connect, to ask, and to
    commit. Every failure is a StoreUnavailableError("sql").
    """

    def __init__(
        self, *, url: str, threads: int = 4, timeout_ms: int = 2000, recycle_seconds: int = 1800
    ) -> None:
        self._shown_url = shown_url(url)
        self.engine = make_engine(
            existing_url(url),
            pool_size=threads,
            timeout_ms=timeout_ms,
            recycle_seconds=recycle_seconds,
        )
        self._deadline = 3 * timeout_ms / 1000
        # A lock that waits is a read for the driver, which must last longer.
        self._lock_wait = timeout_ms / 2000
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sql")

    async def run(self, work: Callable[[Connection], T], *, alone: bool = False) -> T:
        """Call ``work`` in a thread and commit; an exception of ``work`` rolls back.

        ``alone``: no other call with it, of any process, runs meanwhile (see ``sql_lock``). A
        cancelled caller leaves the thread to end by itself.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline):
                return await loop.run_in_executor(
                    self._threads, lambda: self._transaction(work, alone=alone)
                )
        except TimeoutError as error:
            text = f"no answer within {self._deadline:g} s"
            raise StoreUnavailableError("sql", text, transient=True, maybe_applied=True) from error

    def _transaction(self, work: Callable[[Connection], T], *, alone: bool) -> T:
        committing = False
        try:
            with self.engine.connect() as connection, ExitStack() as within:
                if alone:
                    within.enter_context(only_writer(connection, wait_seconds=self._lock_wait))
                result = work(connection)
                committing = True
                try:
                    connection.commit()
                except BaseException:
                    # A commit that failed may leave its transaction open (SQLite: locked), and the
                    # next user of this connection would commit it. Closing it rolls back.
                    connection.invalidate()
                    raise
                return result
        except sql_errors.SQLAlchemyError as error:
            raise unavailable(
                error, was_committing=committing, shown_url=self._shown_url
            ) from error

    async def close(self) -> None:
        """Wait for running calls (bounded by the time-outs) and close all connections."""
        await asyncio.to_thread(self._threads.shutdown)
        self.engine.dispose()


def existing_url(url: str) -> str:
    """``url``, by which SQLite opens a file but makes none: who only asks leaves no empty one."""
    parsed = database_url(url)
    name = parsed.database or ""
    if parsed.get_backend_name() in _MYSQL or "uri" in parsed.query:
        return url
    existing = parsed.set(database=f"file:{quote(name)}", query={**parsed.query, **_NO_NEW_FILE})
    return existing.render_as_string(hide_password=False)


def unavailable(
    error: sql_errors.SQLAlchemyError, *, was_committing: bool = False, shown_url: str = ""
) -> StoreUnavailableError:
    """The library's error as ours, in one line. ``was_committing``: a commit was under way.
    ``shown_url``: where tables are missing."""
    cause: Any = getattr(error, "orig", None)
    code = cause.args[0] if cause is not None and cause.args else None
    if code == _MYSQL_NO_TABLE or _is_empty_sqlite(cause, shown_url):
        where = f" in {shown_url}" if shown_url else ""
        text = f"the tables are missing{where}: run `tokenweir db upgrade`"
        return StoreUnavailableError("sql", text, transient=False)
    text = _one_line(f"{type(error).__name__}: {cause or error}")
    if isinstance(error, sql_errors.TimeoutError):  # all connections are taken
        return StoreUnavailableError("sql", text, transient=True)
    if not isinstance(error, (sql_errors.OperationalError, sql_errors.InterfaceError)):
        return StoreUnavailableError("sql", text, transient=False)
    sqlite_code = getattr(cause, "sqlite_errorcode", None)
    if sqlite_code is not None:
        # The low byte is the code, the rest its details.
        return StoreUnavailableError("sql", text, transient=sqlite_code & 0xFF in _SQLITE_TRANSIENT)
    return StoreUnavailableError(
        "sql",
        text,
        transient=code not in _MYSQL_FINAL,
        # A connection that breaks while it commits leaves open whether it did.
        maybe_applied=was_committing,
    )


def _is_empty_sqlite(cause: Any, shown_url: str) -> bool:
    """No table, or not even a file."""
    if getattr(cause, "sqlite_errorcode", 0) & 0xFF == SQLITE_CANTOPEN:
        path = Path(shown_url.removeprefix(_SQLITE))
        return shown_url.startswith(_SQLITE) and path.parent.is_dir() and not path.exists()
    return str(cause).startswith("no such table")


def _one_line(text: str) -> str:
    return " ".join(_BACKGROUND.sub("", text).split())
