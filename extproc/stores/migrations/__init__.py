"""Alembic migrations of the SQL schema; run by ``extproc.stores.migrate``."""
