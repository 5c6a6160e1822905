"""What an administrator stores: policies over scopes and dimensions, blocks, overrides.

A policy is never changed: a new version begins where the old one ends (``effective_from``,
``effective_to``), so that an old decision can be explained by the policies of its time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from extproc.core.ids import ACROSS_PREFIX, is_root_id
from extproc.core.limits import MAX_LIMIT, ServiceLimit, check_whole


class Scope(StrEnum):
    """Whom a policy is about."""

    ORGANIZATION = "organization"
    TENANT = "tenant"
    DEPARTMENT = "department"
    PROJECT = "project"
    APPLICATION = "application"
    AGENT = "agent"
    USER = "user"
    API_KEY = "api_key"
    MODEL = "model"
    PROVIDER = "provider"
    SERVICE = "service"


class Dimension(StrEnum):
    """What is limited. Tokens and requests are per minute unless the name says otherwise."""

    RPM = "rpm"
    INPUT_TPM = "input_tpm"
    OUTPUT_TPM = "output_tpm"
    TOTAL_TPM = "total_tpm"
    CONCURRENT = "concurrent"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    COST_MICROS_PER_DAY = "cost_micros_per_day"
    COST_MICROS_PER_MONTH = "cost_micros_per_month"
    COST_MICROS_PER_CYCLE = "cost_micros_per_cycle"


class Algorithm(StrEnum):
    """How a rate is measured: by the clock's minute, an exact sliding window, a token bucket."""

    MINUTE = "minute"
    SLIDING = "sliding"
    BUCKET = "bucket"


class Mode(StrEnum):
    """A shadow policy only says what it would have refused."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class OnExceed(StrEnum):
    """Refuse, or let through and record the overage."""

    REFUSE = "refuse"
    RECORD = "record"


# A policy's value: one bucket for all values of the scope together, or one for each of them.
ANY = "*any"
EACH = "*each"

# The name of what ``service_limit`` says of a root with policies; no policy may take it.
SERVICE_LIMIT = "service_limit"
MAX_NAME_LENGTH = 64
MAX_VALUE_LENGTH = 256
# Names stand in Redis keys and metrics between dots and slashes, so they hold none.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MINUTE_SECONDS = 60

# Earlier times are spelt differently by databases and C libraries, and mean nothing here.
FIRST_YEAR = 1970

RATES = frozenset({Dimension.RPM, Dimension.INPUT_TPM, Dimension.OUTPUT_TPM, Dimension.TOTAL_TPM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit of a policy.

    ``limit`` counts requests, tokens, streams or micro-USD by its dimension; 0 refuses everything.
    ``window_seconds`` is the length of a sliding window, ``burst`` the capacity of a token bucket
    (its limit when None), ``cycle_start`` and ``cycle_end`` the bounds of a contract cycle.
    """

    dimension: Dimension
    limit: int
    algorithm: Algorithm = Algorithm.MINUTE
    window_seconds: int = 60
    burst: int | None = None
    cycle_start: datetime | None = None
    cycle_end: datetime | None = None

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("window_seconds", self.window_seconds)):
            check_whole(f"{self.dimension}: {name}", value)
        if self.burst is not None:
            check_whole(f"{self.dimension}: burst", self.burst)
        if not 0 <= self.limit <= MAX_LIMIT:
            raise ValueError(f"{self.dimension}: limit must be 0 to {MAX_LIMIT}, got {self.limit}")
        if self.algorithm is not Algorithm.MINUTE and self.dimension not in RATES:
            raise ValueError(f"{self.dimension}: algorithm {self.algorithm} is for rates only")
        if self.window_seconds != _MINUTE_SECONDS and self.algorithm is not Algorithm.SLIDING:
            raise ValueError(f"{self.dimension}: window_seconds is for algorithm sliding only")
        if self.burst is not None and self.algorithm is not Algorithm.BUCKET:
            raise ValueError(f"{self.dimension}: burst is for algorithm bucket only")
        if not 1 <= self.window_seconds <= 86_400:
            raise ValueError(f"{self.dimension}: window_seconds must be 1 to 86400")
        if self.burst is not None and not 1 <= self.burst <= MAX_LIMIT:
            raise ValueError(f"{self.dimension}: burst must be 1 to {MAX_LIMIT}")
        needs_cycle = self.dimension is Dimension.COST_MICROS_PER_CYCLE
        bounds = (self.cycle_start, self.cycle_end)
        if any((bound is not None) != needs_cycle for bound in bounds):
            raise ValueError(f"{self.dimension}: cycle_start and cycle_end belong to a cycle")
        if self.cycle_start is not None and self.cycle_end is not None:
            check_moment(f"{self.dimension}: cycle_start", self.cycle_start)
            check_moment(f"{self.dimension}: cycle_end", self.cycle_end)
            if min(self.cycle_start.year, self.cycle_end.year) < FIRST_YEAR:
                raise ValueError(f"{self.dimension}: a cycle begins in {FIRST_YEAR} or later")
            if self.cycle_end <= self.cycle_start:
                raise ValueError(f"{self.dimension}: the cycle ends before it starts")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPolicy:
    """One version of one policy.

    ``root``: the tenant (or service) that it belongs to; None applies to every root, each with
    buckets of its own. ``across_roots``: one bucket over all roots, in a Redis slot of its own, for
    ceilings such as a provider's. ``model`` is a glob over the requested model. It is in force from
    ``effective_from`` until before ``effective_to``; of two versions in force the higher counts.
    Raises ValueError for what cannot be a policy.
    """

    name: str
    version: int
    scope: Scope
    value: str
    rules: tuple[Rule, ...]
    root: str | None = None
    model: str = "*"
    mode: Mode = Mode.ENFORCE
    on_exceed: OnExceed = OnExceed.REFUSE
    across_roots: bool = False
    effective_from: datetime
    effective_to: datetime | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_value(self.value, may_be_wild=True)
        check_root(self.root)
        check_whole("version", self.version)
        if self.version < 1:
            raise ValueError(f"version must be at least 1, got {self.version}")
        if not 1 <= len(self.model) <= MAX_VALUE_LENGTH:
            raise ValueError(f"model must be 1 to {MAX_VALUE_LENGTH} characters")
        if not self.model.isprintable():
            raise ValueError("model must be printable text")
        if self.across_roots and self.root is not None:
            raise ValueError("across_roots: a policy of one root cannot reach across roots")
        if not self.rules:
            raise ValueError("rules: at least one is needed")
        dimensions = [rule.dimension for rule in self.rules]
        if len(set(dimensions)) < len(dimensions):
            raise ValueError("rules: a dimension may stand in one rule only")
        check_moment("effective_from", self.effective_from)
        check_moment("effective_to", self.effective_to)
        if self.effective_to is not None and self.effective_to < self.effective_from:
            raise ValueError("effective_to is before effective_from")

    def is_in_force(self, now: datetime) -> bool:
        """Whether it is in force at ``now``."""
        return self.effective_from <= now and (self.effective_to is None or now < self.effective_to)


def check_name(name: str) -> None:
    """Raise ValueError for what cannot be the name of a policy."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"name must be 1 to {MAX_NAME_LENGTH} letters, digits, '_' or '-'")
    if name == SERVICE_LIMIT:
        raise ValueError(f"name {SERVICE_LIMIT} is reserved: use `tokenweir limits set`")


def check_value(value: str, *, may_be_wild: bool) -> None:
    """Raise ValueError for what cannot be a scope's value in a policy or a block."""
    if not 1 <= len(value) <= MAX_VALUE_LENGTH:
        raise ValueError(f"value must be 1 to {MAX_VALUE_LENGTH} characters")
    if not may_be_wild and value in (ANY, EACH):
        raise ValueError(f"value must be one value, not {value}")
    if not value.isprintable() or value != value.strip():
        raise ValueError("value must be printable text without spaces at its ends")
    if value.startswith("*") and value not in (ANY, EACH):
        raise ValueError(f"value must be a value, {ANY} or {EACH}, got {value}")


def check_moment(name: str, moment: datetime | None) -> None:
    """Raise ValueError for a time that is none in UTC: without a zone, or past the year 9999."""
    if moment is None:
        return
    if moment.tzinfo is None:
        raise ValueError(f"{name} needs a time zone")
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name} must be between the years 1 and 9999 in UTC") from None


def check_root(root: str | None) -> None:
    """Raise ValueError for what no service or tenant can be called; None is every root."""
    if root is not None and not is_root_id(root):
        text = "root must be 1 to 128 letters, digits, '.', '_', ':' or '-'"
        raise ValueError(f"{text}, and not begin with {ACROSS_PREFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Refuses everything of one value of a scope, until an end if there is one.

    ``root`` None: at every root. Raises ValueError for a value that stands for several.
    """

    scope: Scope
    value: str
    reason: str = ""
    root: str | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        check_value(self.value, may_be_wild=False)
        check_root(self.root)
        if len(self.reason) > MAX_VALUE_LENGTH or not self.reason.isprintable():
            raise ValueError(f"reason must be at most {MAX_VALUE_LENGTH} printable characters")
        check_moment("until", self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Another limit for one rule of a policy, until its end."""

    policy: str
    dimension: Dimension
    limit: int
    until: datetime

    def __post_init__(self) -> None:
        check_whole("limit", self.limit)
        if not 0 <= self.limit <= MAX_LIMIT:
            raise ValueError(f"limit must be 0 to {MAX_LIMIT}, got {self.limit}")
        check_moment("until", self.until)


@dataclass(slots=True, kw_only=True)
class Descriptor:
    """Who and what a request is. ``values`` holds validated ids, ``requested_model`` any text.

    A scope that is absent from ``values`` has no policies; MODEL is the requested model by itself.
    """

    root: str
    values: Mapping[Scope, str]
    requested_model: str


class BadEffect(StrEnum):
    """What becomes of a row that cannot be read."""

    REFUSES = "root refused"  # everything of its root, for what is limited there is not known
    LEFT_OUT = "left out"  # of every root, or not in force yet, or only an override
    BLOCKS = "blocks all the same"  # a block of which only the end or the reason is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A stored row that is no policy, block, override or service limit: one written by hand, say.

    ``name`` is what people know it by, for display. ``root`` None: every root. ``begins`` is when
    what it says begins, if that is to come.
    """

    table: str
    id: int
    name: str
    root: str | None
    reason: str
    effect: BadEffect
    version: int = 0
    begins: datetime | None = None

    def __str__(self) -> str:
        where = "every root" if self.root is None else f"root {self.root}"
        return f"{self.table} id {self.id} ({self.name}, {where}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """What is, or will be, in force for one root; see ``views`` for its JSON and its version.

    ``bad`` are rows that could not be read and are not in force; no view holds them.
    """

    root: str
    service: ServiceLimit | None
    policies: tuple[LimitPolicy, ...] = ()
    blocks: tuple[Block, ...] = ()
    overrides: tuple[Override, ...] = ()
    bad: tuple[BadRow, ...] = ()
