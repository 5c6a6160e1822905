"""A real MariaDB for tests."""

import getpass
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from tests.support.processes import free_port, running

# A MySQL or MariaDB to use instead of starting one; its user must be able to create databases.
URL_VARIABLE = "TOKENWEIR_TEST_MYSQL_URL"


def is_available() -> bool:
    """True when a server is given, or its programs are installed."""
    programs = ("mariadbd", "mariadb-install-db")
    return URL_VARIABLE in os.environ or all(shutil.which(name) for name in programs)


@contextmanager
def mariadb_server(directory: Path) -> Iterator[str]:
    """A server of its own (or the given one); gives its URL, which names no database."""
    if given := os.environ.get(URL_VARIABLE):
        yield given
        return
    with OwnServer(directory) as server:
        yield server.url


class OwnServer:
    """A server that may be killed and started again. ``durable``: what is committed outlives that,
    as with the settings that a server has by itself; else a commit costs less."""

    def __init__(self, directory: Path, *, durable: bool = False, buffer_mb: int = 32) -> None:
        data, secret, port = directory / "data", secrets.token_hex(8), free_port()
        user = f"--user={getpass.getuser()}"
        install = subprocess.run(
            ["mariadb-install-db", "--no-defaults", user, f"--datadir={data}", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
        )
        if install.returncode != 0:
            raise RuntimeError(f"mariadb-install-db failed:\n{install.stdout}{install.stderr}")
        init_file = directory / "init.sql"
        init_file.write_text(
            f"CREATE USER IF NOT EXISTS 'tokenweir'@'127.0.0.1' IDENTIFIED BY '{secret}';\n"
            "GRANT ALL ON *.* TO 'tokenweir'@'127.0.0.1';\n"
        )
        self._command = [
            str(shutil.which("mariadbd")),
            "--no-defaults",
            user,
            f"--datadir={data}",
            f"--socket={directory / 'mariadb.sock'}",
            f"--pid-file={directory / 'mariadb.pid'}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            f"--init-file={init_file}",
            f"--innodb-flush-log-at-trx-commit={int(durable)}",
            f"--innodb-buffer-pool-size={buffer_mb}M",
        ]
        self._log = directory / "mariadb.log"
        self.url = f"mysql+pymysql://tokenweir:{secret}@127.0.0.1:{port}/"
        self._running = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Back when it answers."""
        one = running(self._command, log=self._log, is_ready=lambda: _answers(self.url))
        self._process = self._running.enter_context(one)

    def kill(self) -> None:
        """At once: it writes nothing any more."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


def _answers(url: str) -> bool:
    engine = create_engine(url, connect_args={"connect_timeout": 2})
    try:
        with engine.connect():
            return True
    except SQLAlchemyError:
        return False
    finally:
        engine.dispose()


def make_database(server_url: str) -> str:
    """A new, empty database; returns its URL. It lives as long as the server."""
    name = f"tokenweir_{secrets.token_hex(6)}"
    _execute(server_url, f"CREATE DATABASE {name}")
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """A new, empty database; gives its URL and drops it afterwards."""
    url = make_database(server_url)
    yield url
    _execute(server_url, f"DROP DATABASE {make_url(url).database}")


def _execute(server_url: str, statement: str) -> None:
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()
