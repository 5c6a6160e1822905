"""Alembic's entry point. The connection is handed over by ``extproc.stores.migrate``."""

from alembic import context

from extproc.stores import ledger_tables  # noqa: F401  # its tables are part of the schema
from extproc.stores.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="tokenweir_schema",
)
with context.begin_transaction():
    context.run_migrations()
