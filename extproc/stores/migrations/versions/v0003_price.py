"""The price book. Spelt out, not taken from ``tables``, which will move on."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_UTF8: dict[str, Any] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
}


def upgrade() -> None:
    """Create ``price``."""
    op.create_table(
        "price",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("price_class", sa.String(32), nullable=False),
        sa.Column("service_tier", sa.String(32), nullable=False),
        sa.Column("above_input_tokens", sa.BigInteger, nullable=False),
        sa.Column("unit", sa.String(16), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("micros_per_million", sa.BigInteger, nullable=False),
        sa.Column("permille", sa.Integer, nullable=False),
        sa.Column("source", sa.String(256), nullable=False),
        sa.Column("effective_from", sa.DateTime, nullable=False),
        sa.Column("effective_to", sa.DateTime),
        sa.Column(
            "created_at", sa.DateTime, nullable=False, server_default=sa.func.current_timestamp()
        ),
        **_UTF8,
    )
    op.create_index("ix_price_model", "price", ["provider", "model"])
    op.create_index("ix_price_effective_to", "price", ["effective_to"])


def downgrade() -> None:
    """Drop it, with every price in it."""
    op.drop_table("price")
