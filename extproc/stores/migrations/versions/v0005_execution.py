"""Executions of strict roots, and what is to be told of them. Spelt out, not taken from tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_UTF8: dict[str, Any] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
}


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


def upgrade() -> None:
    """Create ``execution`` and ``outbox``."""
    op.create_table(
        "execution",
        _id(),
        sa.Column("reservation_id", sa.String(128), nullable=False),
        sa.Column("root", sa.String(128), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wire_format", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
        sa.Column("reserved_cost_micros", sa.BigInteger, nullable=False),
        sa.Column("deadline_at", sa.DateTime, nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("updated_at", sa.DateTime, nullable=False),
        sa.UniqueConstraint("reservation_id", name="uk_execution_reservation"),
        **_UTF8,
    )
    op.create_index("ix_execution_state", "execution", ["state", "updated_at"])
    op.create_table(
        "outbox",
        _id(),
        sa.Column("reservation_id", sa.String(128), nullable=False),
        sa.Column("event_type", sa.String(64), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("published_at", sa.DateTime),
        **_UTF8,
    )
    op.create_index("ix_outbox_published", "outbox", ["published_at", "id"])


def downgrade() -> None:
    """Drop them, with everything in them."""
    for name in ("outbox", "execution"):
        op.drop_table(name)
