"""What an administrator stores: policies over scopes and dimensions, blocks, overrides.

A policy is never changed: a new version begins where the old one ends (``effective_from``,
``effective_to``), so that an old decision can be explained by the policies of its time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from extproc.core.limits import MAX_LIMIT, ServiceLimit


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

RATES = frozenset(
    {Dimension.RPM, Dimension.INPUT_TPM, Dimension.OUTPUT_TPM, Dimension.TOTAL_TPM}
)


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
        if not 0 <= self.limit <= MAX_LIMIT:
            raise ValueError(f"{self.dimension}: limit must be 0 to {MAX_LIMIT}, got {self.limit}")
        if self.algorithm is not Algorithm.MINUTE and self.dimension not in RATES:
            raise ValueError(f"{self.dimension}: algorithm {self.algorithm} is for rates only")
        if not 1 <= self.window_seconds <= 86_400:
            raise ValueError(f"{self.dimension}: window_seconds must be 1 to 86400")
        if self.burst is not None and not 1 <= self.burst <= MAX_LIMIT:
            raise ValueError(f"{self.dimension}: burst must be 1 to {MAX_LIMIT}")
        needs_cycle = self.dimension is Dimension.COST_MICROS_PER_CYCLE
        has_cycle = self.cycle_start is not None and self.cycle_end is not None
        if needs_cycle != has_cycle:
            raise ValueError(f"{self.dimension}: cycle_start and cycle_end belong to a cycle")
        if has_cycle:
            assert self.cycle_start is not None
            assert self.cycle_end is not None
            if self.cycle_end <= self.cycle_start:
                raise ValueError(f"{self.dimension}: the cycle ends before it starts")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPolicy:
    """One version of one policy.

    ``root``: the tenant (or service) that it belongs to; None applies to every root, each with
    buckets of its own. ``across_roots``: one bucket over all roots, in a Redis slot of its own, for
    ceilings such as a provider's. ``model`` is a glob over the requested model.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Refuses everything of one value of a scope, until an end if there is one."""

    scope: Scope
    value: str
    reason: str = ""
    root: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Another limit for one rule of a policy, until its end."""

    policy: str
    dimension: Dimension
    limit: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Who and what a request is. ``values`` holds validated ids; ``requested_model`` is free text."""

    root: str
    values: Mapping[Scope, str]
    requested_model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """Everything in force for one root at one time; see ``views`` for its JSON and its version."""

    root: str
    service: ServiceLimit | None
    policies: tuple[LimitPolicy, ...] = ()
    blocks: tuple[Block, ...] = ()
    overrides: tuple[Override, ...] = ()
