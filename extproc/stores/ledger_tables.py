"""SQL tables of the ledger; part of the same schema as ``tables``.

A row of ``usage_ledger`` is never changed. Every number in it is a difference and may be added up;
NULL is "nothing of this kind", and takes no room. Times are in UTC and of whole seconds.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.mysql import VARCHAR

from extproc.core.ledger import KIND_FIELDS
from extproc.stores.tables import metadata

_ID = BigInteger().with_variant(Integer, "sqlite")
_UTF8: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
        ("engine", "InnoDB"),
    )
}


def _word(length: int) -> Any:
    """Text that is ASCII by our own rules: a quarter of the room in an index."""
    ascii_only = VARCHAR(length, charset="ascii", collation="ascii_bin")
    return String(length).with_variant(ascii_only, "mysql", "mariadb")


usage_ledger = Table(
    "usage_ledger",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("request_id", String(256), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("reservation_id", _word(128), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("root", _word(128), nullable=False),
    Column("subject", _word(512), nullable=False),
    Column("model", String(256), nullable=False),
    Column("provider", String(64), nullable=False),
    Column("provider_request_id", String(256), nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    *(Column(name, BigInteger) for name in KIND_FIELDS),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_cost_micros", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("prices", String(256), nullable=False),
    Column("price_version", String(64), nullable=False),
    Column("source", _word(16), nullable=False),
    Column("knowledge", _word(16), nullable=False),
    Column("outcome", _word(32), nullable=False),
    Column("status", _word(16), nullable=False),
    Column("admitted_at", DateTime, nullable=False),
    Column("settled_at", DateTime, nullable=False),
    Column("minute", _word(12), nullable=False),
    UniqueConstraint(
        "request_id", "endpoint", "reservation_id", "revision", name="uk_usage_ledger_event"
    ),
    Index("ix_usage_ledger_root", "root", "settled_at"),
    Index("ix_usage_ledger_model", "model", "settled_at"),
    # Bills and budgets go by the admission.
    Index("ix_usage_ledger_admitted", "admitted_at"),
    **_UTF8,
)

# Sums of the rows whose requests were admitted in an hour, kept up with every row.
ledger_hour = Table(
    "ledger_hour",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("hour", DateTime, nullable=False),
    Column("root", _word(128), nullable=False),
    Column("subject", _word(512), nullable=False),
    Column("model", String(256), nullable=False),
    Column("provider", String(64), nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in KIND_FIELDS),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_cost_micros", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    UniqueConstraint("hour", "root", "subject", "model", "provider", name="uk_ledger_hour"),
    Index("ix_ledger_hour_root", "root", "hour"),
    Index("ix_ledger_hour_model", "model", "hour"),
    **_UTF8,
)

# Events that cannot be rows, for people to look at.
ledger_dead = Table(
    "ledger_dead",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    # Of root, event_id and raw: a letter that comes again is the same one.
    Column("digest", _word(64), nullable=False),
    Column("root", _word(128), nullable=False),
    Column("event_id", _word(64), nullable=False),
    # JSON, cut where it is too long.
    Column("raw", Text, nullable=False),
    Column("reason", String(512), nullable=False),
    Column("created_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    UniqueConstraint("digest", name="uk_ledger_dead_digest"),
    **_UTF8,
)
