"""The ledger. Spelt out, not taken from ``ledger_tables``, which will move on."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import VARCHAR

revision = "0004"
down_revision = "0003"

_UTF8: dict[str, Any] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
}
_KINDS = (
    "cached_input_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "audio_input_tokens",
    "audio_output_tokens",
    "image_input_tokens",
    "image_output_tokens",
    "other_input_tokens",
    "server_tool_calls",
)


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


def _word(name: str, length: int) -> sa.Column[Any]:
    ascii_only = VARCHAR(length, charset="ascii", collation="ascii_bin")
    kind = sa.String(length).with_variant(ascii_only, "mysql", "mariadb")
    return sa.Column(name, kind, nullable=False)


def _text(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def upgrade() -> None:
    """Create ``usage_ledger``, ``ledger_hour`` and ``ledger_dead``."""
    op.create_table(
        "usage_ledger",
        _id(),
        _text("request_id", 256),
        _text("endpoint", 64),
        _word("reservation_id", 128),
        sa.Column("revision", sa.Integer, nullable=False),
        _word("root", 128),
        _word("subject", 512),
        _text("model", 256),
        _text("provider", 64),
        _text("provider_request_id", 256),
        *_numbers("input_tokens", "output_tokens"),
        *(sa.Column(name, sa.BigInteger) for name in _KINDS),
        *_numbers("reserved_tokens", "reserved_cost_micros", "cost_micros"),
        _text("prices", 256),
        _text("price_version", 64),
        _word("source", 16),
        _word("knowledge", 16),
        _word("outcome", 32),
        _word("status", 16),
        sa.Column("admitted_at", sa.DateTime, nullable=False),
        sa.Column("settled_at", sa.DateTime, nullable=False),
        _word("minute", 12),
        sa.UniqueConstraint(
            "request_id", "endpoint", "reservation_id", "revision", name="uk_usage_ledger_event"
        ),
        **_UTF8,
    )
    op.create_index("ix_usage_ledger_root", "usage_ledger", ["root", "settled_at"])
    op.create_index("ix_usage_ledger_model", "usage_ledger", ["model", "settled_at"])
    op.create_index("ix_usage_ledger_admitted", "usage_ledger", ["admitted_at"])
    op.create_table(
        "ledger_hour",
        _id(),
        sa.Column("hour", sa.DateTime, nullable=False),
        _word("root", 128),
        _word("subject", 512),
        _text("model", 256),
        _text("provider", 64),
        *_numbers("requests", "input_tokens", "output_tokens", *_KINDS),
        *_numbers("reserved_tokens", "reserved_cost_micros", "cost_micros"),
        sa.UniqueConstraint("hour", "root", "subject", "model", "provider", name="uk_ledger_hour"),
        **_UTF8,
    )
    op.create_index("ix_ledger_hour_root", "ledger_hour", ["root", "hour"])
    op.create_index("ix_ledger_hour_model", "ledger_hour", ["model", "hour"])
    op.create_table(
        "ledger_dead",
        _id(),
        _word("digest", 64),
        _word("root", 128),
        _word("event_id", 64),
        sa.Column("raw", sa.Text, nullable=False),
        _text("reason", 512),
        sa.Column(
            "created_at", sa.DateTime, nullable=False, server_default=sa.func.current_timestamp()
        ),
        sa.UniqueConstraint("digest", name="uk_ledger_dead_digest"),
        **_UTF8,
    )


def downgrade() -> None:
    """Drop them, with everything in them."""
    for name in ("ledger_dead", "ledger_hour", "usage_ledger"):
        op.drop_table(name)
