"""SQL tables. ``service_limit`` is the only source of truth for limits."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
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
    # Ids are compared byte by byte, as Redis does: "a" and "A" are two services.
    mysql_charset="ascii",
    mysql_collate="ascii_bin",
    mysql_engine="InnoDB",
    mariadb_charset="ascii",
    mariadb_collate="ascii_bin",
    mariadb_engine="InnoDB",
)
