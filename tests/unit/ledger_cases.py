"""Ledger rows for tests."""

from datetime import UTC, datetime
from typing import Any

from extproc.core.ledger_rows import LedgerRow


def at_ms(text: str) -> int:
    """Unix milliseconds of ISO 8601 text in UTC."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return round(moment.timestamp()) * 1000


def row(number: int = 1, *, at: str = "2026-12-01T12:00:00", **given: Any) -> LedgerRow:
    """A settled request of tenant ``acme``: 100 tokens in, 10 out, 150 micro-USD."""
    moment = at_ms(at)
    usual: dict[str, Any] = {
        "request_id": f"r{number}",
        "endpoint": "openai_chat",
        "reservation_id": f"{number:032x}",
        "revision": 1,
        "root": "acme",
        "subject": '{"user":"alice"}',
        "model": "gpt-4o",
        "provider": "openai",
        "provider_request_id": f"req_{number}",
        "tokens": {"input": 100, "output": 10},
        "cost_micros": 150,
        "price_version": "v1",
        "knowledge": "known",
        "admitted_at_ms": moment,
        "settled_at_ms": moment + 2000,
    }
    return LedgerRow(**{**usual, **given})
