"""SQL tables: the only source of truth for limits.

Times are in UTC and of whole seconds. Text is compared byte by byte, as Redis does: "a" and "A" are
two services, two users, two models.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.mysql import TINYINT

metadata = MetaData()

# SQLite counts up only a column of exactly this type.
_Id = BigInteger().with_variant(Integer, "sqlite")
_Status = SmallInteger().with_variant(TINYINT, "mysql", "mariadb")

service_limit = Table(
    "service_limit",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("service_id", String(128), nullable=False),
    # Requests and tokens per minute; 0 refuses everything.
    Column("rpm", Integer, nullable=False),
    Column("tpm", BigInteger, nullable=False),
    # 1 enabled, 0 disabled.
    Column("status", _Status, nullable=False, server_default="1"),
    # UTC.
    Column("created_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    Column("updated_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    UniqueConstraint("service_id", name="uk_service_id"),
    mysql_charset="ascii",
    mysql_collate="ascii_bin",
    mysql_engine="InnoDB",
    mariadb_charset="ascii",
    mariadb_collate="ascii_bin",
    mariadb_engine="InnoDB",
)

# Names of models are any text.
_UTF8: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
        ("engine", "InnoDB"),
    )
}

# A row is one version of a policy. It is never changed, except that its end may come: a version
# that took no effect ends where it begins.
limit_policy = Table(
    "limit_policy",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    # NULL: every root.
    Column("root", String(128)),
    Column("scope", String(16), nullable=False),
    Column("value", String(256), nullable=False),
    Column("model", String(256), nullable=False),
    Column("mode", String(16), nullable=False),
    Column("on_exceed", String(16), nullable=False),
    Column("across_roots", _Status, nullable=False),
    # JSON, see core.views.
    Column("rules", Text, nullable=False),
    Column("effective_from", DateTime, nullable=False),
    Column("effective_to", DateTime),
    Column("created_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    UniqueConstraint("name", "version", name="uk_limit_policy_version"),
    Index("ix_limit_policy_root", "root", "effective_to"),
    **_UTF8,
)

block = Table(
    "block",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("scope", String(16), nullable=False),
    Column("value", String(256), nullable=False),
    Column("root", String(128)),
    Column("reason", String(256), nullable=False),
    # NULL: for ever.
    Column("until", DateTime),
    Column("created_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    Index("ix_block_root", "root"),
    **_UTF8,
)

# Of several rows for one rule the last counts.
limit_override = Table(
    "limit_override",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("policy", String(64), nullable=False),
    Column("dimension", String(32), nullable=False),
    Column("limit", BigInteger, nullable=False),
    Column("until", DateTime, nullable=False),
    Column("created_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    Index("ix_limit_override_policy", "policy"),
    **_UTF8,
)

# A row is one price from a moment on. It is never changed, except that its end may come: one that
# never counted ends where it begins.
price = Table(
    "price",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    # "*": every provider.
    Column("provider", String(64), nullable=False),
    # A glob.
    Column("model", String(256), nullable=False),
    # core.prices.PriceClass
    Column("price_class", String(32), nullable=False),
    # "": the standard one.
    Column("service_tier", String(32), nullable=False),
    # Counts for requests with more tokens of input than this.
    Column("above_input_tokens", BigInteger, nullable=False),
    # What a million of which the price is for: token, call.
    Column("unit", String(16), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("micros_per_million", BigInteger, nullable=False),
    # The part of it that counts, in thousandths.
    Column("permille", Integer, nullable=False),
    Column("source", String(256), nullable=False),
    Column("effective_from", DateTime, nullable=False),
    Column("effective_to", DateTime),
    Column("created_at", DateTime, nullable=False, server_default=func.current_timestamp()),
    Index("ix_price_model", "provider", "model"),
    Index("ix_price_effective_to", "effective_to"),
    **_UTF8,
)
