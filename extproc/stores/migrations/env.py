"""Alembic's entry point. The connection is handed over by ``extproc.stores.migrate``."""

from alembic import context

# Their tables are part of the schema.
from extproc.stores import execution_table, ledger_tables  # noqa: F401
from extproc.stores.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="tokenweir_schema",
)
with context.begin_transaction():
    context.run_migrations()
