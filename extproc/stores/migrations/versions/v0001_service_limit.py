"""The table of limits. Spelt out, not taken from ``tables``, which will move on."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import TINYINT

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create ``service_limit``."""
    op.create_table(
        "service_limit",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("service_id", sa.String(128), nullable=False),
        sa.Column("rpm", sa.Integer, nullable=False),
        sa.Column("tpm", sa.BigInteger, nullable=False),
        sa.Column(
            "status",
            sa.SmallInteger().with_variant(TINYINT, "mysql", "mariadb"),
            nullable=False,
            server_default="1",
        ),
        sa.Column(
            "created_at", sa.DateTime, nullable=False, server_default=sa.func.current_timestamp()
        ),
        sa.Column(
            "updated_at", sa.DateTime, nullable=False, server_default=sa.func.current_timestamp()
        ),
        sa.UniqueConstraint("service_id", name="uk_service_id"),
        mysql_charset="ascii",
        mysql_collate="ascii_bin",
        mysql_engine="InnoDB",
        mariadb_charset="ascii",
        mariadb_collate="ascii_bin",
        mariadb_engine="InnoDB",
    )


def downgrade() -> None:
    """Drop it, with everything in it."""
    op.drop_table("service_limit")
