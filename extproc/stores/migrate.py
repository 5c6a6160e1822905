"""Brings a database to the newest schema; the migrations are inside the package."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import exc as sql_errors

from extproc.stores.sql import make_engine, unavailable

_FOLDER = Path(__file__).resolve().parent / "migrations"


def upgrade(url: str, *, timeout_ms: int = 60_000) -> str:
    """Upgrade the database at ``url`` to the newest revision; returns its name.

    Blocking; to be run by an operator's command, not by every server. Raises SettingsError for a
    URL that cannot be used, StoreUnavailableError when the database does not take it.
    """
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    engine = make_engine(url, timeout_ms=timeout_ms)
    try:
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
    except sql_errors.SQLAlchemyError as error:
        raise unavailable(error) from error
    finally:
        engine.dispose()
    return ScriptDirectory.from_config(config).get_current_head() or ""
