"""One lock for all who change policies: what was checked, such as room, holds when it is written.

Rows alone are no such lock: two changes of different rows may each fit, and not both.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy import exc as sql_errors

from extproc.core.errors import StoreUnavailableError

# Locks have names for a whole server, 64 characters at most, and a server may have many databases.
_NAME = "CONCAT('tokenweir.', MD5(DATABASE()))"
_TAKE = text(f"SELECT GET_LOCK({_NAME}, :seconds)")
_GIVE_BACK = text(f"SELECT RELEASE_LOCK({_NAME})")


@contextmanager
def only_writer(connection: Connection, *, wait_seconds: float) -> Iterator[None]:
    """Nobody else holds the lock of this database within; commit within, too.

    To be entered before anything was asked, so that all that is seen is newer than the lock. Raises
    StoreUnavailableError("sql") when another still holds it; SQLite waits for as long as for any
    lock, and its lock ends with the transaction.
    """
    if connection.dialect.name == "sqlite":
        # The driver would begin with the first write only, after what was read to decide on it.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        return
    if connection.execute(_TAKE, {"seconds": wait_seconds}).scalar_one() != 1:
        reason = "somebody else is changing policies; nothing was written"
        raise StoreUnavailableError("sql", reason, transient=True)
    try:
        yield
    finally:
        _give_back(connection)


def _give_back(connection: Connection) -> None:
    if connection.invalidated:
        return  # it was closed, and the lock ended with it
    try:
        connection.rollback()
        connection.execute(_GIVE_BACK)
    except sql_errors.SQLAlchemyError:
        connection.invalidate()
