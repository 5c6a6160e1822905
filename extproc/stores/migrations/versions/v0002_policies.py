"""Policies, blocks, overrides. Spelt out, not taken from ``tables``, which will move on."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import TINYINT

revision = "0002"
down_revision = "0001"

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


def _created_at() -> sa.Column[Any]:
    return sa.Column(
        "created_at", sa.DateTime, nullable=False, server_default=sa.func.current_timestamp()
    )


def upgrade() -> None:
    """Create ``limit_policy``, ``block`` and ``limit_override``."""
    op.create_table(
        "limit_policy",
        _id(),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("root", sa.String(128)),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("value", sa.String(256), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("on_exceed", sa.String(16), nullable=False),
        sa.Column(
            "across_roots",
            sa.SmallInteger().with_variant(TINYINT, "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column("rules", sa.Text, nullable=False),
        sa.Column("effective_from", sa.DateTime, nullable=False),
        sa.Column("effective_to", sa.DateTime),
        _created_at(),
        sa.UniqueConstraint("name", "version", name="uk_limit_policy_version"),
        **_UTF8,
    )
    op.create_index("ix_limit_policy_root", "limit_policy", ["root", "effective_to"])
    op.create_table(
        "block",
        _id(),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("value", sa.String(256), nullable=False),
        sa.Column("root", sa.String(128)),
        sa.Column("reason", sa.String(256), nullable=False),
        sa.Column("until", sa.DateTime),
        _created_at(),
        **_UTF8,
    )
    op.create_index("ix_block_root", "block", ["root"])
    op.create_table(
        "limit_override",
        _id(),
        sa.Column("policy", sa.String(64), nullable=False),
        sa.Column("dimension", sa.String(32), nullable=False),
        sa.Column("limit", sa.BigInteger, nullable=False),
        sa.Column("until", sa.DateTime, nullable=False),
        _created_at(),
        **_UTF8,
    )
    op.create_index("ix_limit_override_policy", "limit_override", ["policy"])


def downgrade() -> None:
    """Drop them, with everything in them."""
    for name in ("limit_override", "block", "limit_policy"):
        op.drop_table(name)
