"""What an administrator allows a service."""

from dataclasses import dataclass

# Redis' Lua computes in doubles, which hold integers exactly only below 2**53.
MAX_COUNT = 2**53 - 1
# A limit leaves room for sums of limit and request without passing MAX_COUNT.
MAX_LIMIT = 2**51


def check_whole(name: str, value: object) -> None:
    """Raise ValueError for a number that is not whole: SQLite and JSON hold 1.5, text and true."""
    if type(value) is not int:
        raise ValueError(f"{name} must be a whole number")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimit:
    """One row of ``service_limit``: requests and tokens per minute of one service.

    Zero refuses everything. ``enabled`` is the table's ``status`` column.
    """

    service_id: str
    rpm: int
    tpm: int
    enabled: bool = True

    def __post_init__(self) -> None:
        for name, value in (("rpm", self.rpm), ("tpm", self.tpm)):
            check_whole(name, value)
            if not 0 <= value <= MAX_LIMIT:
                raise ValueError(f"{name} must be between 0 and {MAX_LIMIT}, got {value}")
