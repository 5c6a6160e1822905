"""A real MariaDB for tests."""

import getpass
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        f"CREATE USER 'tokenweir'@'127.0.0.1' IDENTIFIED BY '{secret}';\n"
        "GRANT ALL ON *.* TO 'tokenweir'@'127.0.0.1';\n"
    )
    command = [
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
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-size=32M",
    ]
    url = f"mysql+pymysql://tokenweir:{secret}@127.0.0.1:{port}/"
    with running(command, log=directory / "mariadb.log", is_ready=lambda: _answers(url)):
        yield url


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
