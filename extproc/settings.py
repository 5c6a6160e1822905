"""Settings: read once at the start, frozen, typed. A wrong one stops the start with its name.

Sources, strongest first: environment variables ``TOKENWEIR_SECTION__KEY``, then the TOML file
given by ``--config`` or ``TOKENWEIR_CONFIG``, then the defaults below. Nothing reads the
environment later.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from extproc.core.errors import SettingsError
from extproc.core.header_names import IDENTITY_HEADER, check_idempotency_header
from extproc.core.policies import Scope
from extproc.core.price_list import Price, PriceList
from extproc.core.worker_addresses import MOST_WORKERS
from extproc.settings_base import Part, Section
from extproc.settings_money import DurabilitySettings, LedgerSettings, PriceSettings
from extproc.stores.redis_url import check_redis_url

ENV_PREFIX = "TOKENWEIR_"
# Variables with our prefix that are not settings: the file's own path, and switches of the tests.
_NOT_SETTINGS = ("TOKENWEIR_CONFIG", "TOKENWEIR_TEST_", "TOKENWEIR_ENVOY_", "TOKENWEIR_WORKER_")
# What a Kubernetes Service called "tokenweir" or "tokenweir-..." puts into every pod.
_SERVICE_LINK = re.compile(r"TOKENWEIR_(\w+_)?(SERVICE_HOST|(SERVICE_)?PORT(_\w+)?)")


_HEADER_NAME = r"^[a-z0-9!#$%&'*+.^_`|~-]+$"


def _listen_address(value: str) -> str:
    if value.startswith("unix:"):
        if not value.removeprefix("unix:").startswith("/"):
            raise ValueError("a unix socket needs an absolute path: unix:/path/to/socket")
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("expected HOST:PORT or unix:/path/to/socket")
    return value


def _tcp_address(value: str) -> str:
    if value.startswith("unix:"):
        raise ValueError("expected HOST:PORT")
    return _listen_address(value)


def _database_url(value: str) -> str:
    if not value.startswith(("sqlite:///", "mysql+pymysql://", "mariadb+pymysql://")):
        raise ValueError("expected sqlite:///, mysql+pymysql:// or mariadb+pymysql://")
    return value


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
TcpAddress = Annotated[str, AfterValidator(_tcp_address)]


class ServerSettings(Section):
    """Where the gRPC server and the metrics endpoint listen, and how large a message may be."""

    listen: ListenAddress = "127.0.0.1:18070"
    # So many processes, at this address and those after it (docs/performance.md).
    workers: int = Field(default=1, ge=1, le=MOST_WORKERS)
    metrics_listen: TcpAddress = "127.0.0.1:18060"
    # A directory shared by the processes of one host, so that one endpoint shows all of them.
    metrics_dir: Path | None = None
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    # After SIGTERM: how long new streams are still accepted, so that Envoy can look elsewhere.
    drain_seconds: float = Field(default=3.0, ge=0, le=3600)
    shutdown_grace_seconds: float = Field(default=10.0, ge=0, le=3600)

    @field_validator("metrics_dir", mode="before")
    @classmethod
    def _is_no_empty_path(cls, value: Any) -> Any:
        if value == "":  # would be the working directory
            raise ValueError("expected a directory")
        return value


class RedisSettings(Section):
    """Redis or Valkey: counters and reservations."""

    # Before the URL, which is read by it.
    cluster: bool = False
    url: str = "redis://127.0.0.1:6379/0"
    timeout_ms: int = Field(default=50, ge=1, le=10_000)
    max_connections: int = Field(default=8, ge=1, le=1024)
    # What a request meets when Redis does not answer: 503, or it passes unmetered.
    failure_mode: Literal["closed", "open"] = "closed"

    @field_validator("url")
    @classmethod
    def _is_redis_url(cls, value: str, info: ValidationInfo) -> str:
        # A wrong `cluster` is not in the data, and is an error of its own.
        check_redis_url(value, cluster=info.data.get("cluster", False))
        return value


class DatabaseSettings(Section):
    """SQL: the source of truth of limits. MySQL or MariaDB by pymysql, or SQLite."""

    url: Annotated[str, AfterValidator(_database_url)] = "sqlite:///tokenweir.db"
    threads: int = Field(default=4, ge=1, le=64)
    timeout_ms: int = Field(default=2000, ge=10, le=60_000)
    recycle_seconds: int = Field(default=1800, ge=1)


class MetadataSource(Part):
    """The service id is in dynamic metadata that one of Envoy's own auth filters wrote."""

    kind: Literal["metadata"]
    namespace: str = "envoy.filters.http.jwt_authn"
    path: tuple[str, ...] = Field(min_length=1)


class HeaderSource(Part):
    """The service id is in a header that the include removes from clients' requests first."""

    kind: Literal["header"]
    name: str = Field(pattern=_HEADER_NAME)


IdentitySource = Annotated[MetadataSource | HeaderSource, Field(discriminator="kind")]


class IdentitySettings(Section):
    """Who is asking: sources in order, the first that is present decides."""

    sources: tuple[IdentitySource, ...] = Field(
        default=(HeaderSource(kind="header", name=IDENTITY_HEADER),), min_length=1
    )
    # Where the values of policies' other scopes come from: user, department, agent, ...
    scopes: Mapping[Scope, tuple[IdentitySource, ...]] = Field(default_factory=dict)

    @field_validator("scopes")
    @classmethod
    def _are_from_outside(
        cls, value: Mapping[Scope, tuple[IdentitySource, ...]]
    ) -> Mapping[Scope, tuple[IdentitySource, ...]]:
        for scope in (Scope.SERVICE, Scope.MODEL):
            if scope in value:
                raise ValueError(f"{scope} has no sources: it is who asks, or what the body says")
        return value


class LimitsSettings(Section):
    """How long limits are cached in Redis."""

    cache_ttl_seconds: int = Field(default=600, ge=1, le=86_400)
    negative_ttl_seconds: int = Field(default=10, ge=1, le=3600)


class AdmissionSettings(Section):
    """How a request is estimated, and what happens to one that cannot be read."""

    default_output_tokens: int = Field(default=512, ge=0, le=1_000_000)
    # For services with policies: a quantile of recent answers times a margin, or their mean.
    # strict, for all services: the request's own cap, or platform_cap_tokens written into it.
    estimate: Literal["quantile", "mean", "strict"] = "quantile"
    estimate_quantile: float = Field(default=0.95, ge=0.001, le=1)
    estimate_margin_percent: int = Field(default=110, ge=1, le=10_000)
    platform_cap_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    # The whole decision, SQL included; keep it below the filter's message_timeout in Envoy.
    timeout_ms: int = Field(default=800, ge=1, le=60_000)
    unmetered: Literal["refuse", "allow"] = "refuse"
    # Models without a price that `known_models` (globs) does not name either.
    unknown_models: Literal["allow", "refuse"] = "allow"
    known_models: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    # A request header with a client's own key: one request at a time has it.
    idempotency_header: str | None = Field(default=None, pattern=_HEADER_NAME)
    idempotency_ttl_seconds: int = Field(default=86_400, ge=60, le=7 * 86_400)
    # Correct input estimates by what providers reported for the same model.
    learn_input_factors: bool = True
    # In profiles that cannot hide a stream's usage event: ask for it all the same, so that clients
    # which did not ask get one event more, without choices. Else their output is an estimate.
    show_usage_events: bool = False
    # Bodies above this are parsed and counted in a thread, off the event loop.
    count_inline_max_bytes: int = Field(default=32 * 1024, ge=0)

    @model_validator(mode="after")
    def _strict_needs_a_cap(self) -> "AdmissionSettings":
        if self.estimate == "strict" and self.platform_cap_tokens is None:
            raise ValueError("estimate = strict needs platform_cap_tokens")
        return self


class ReaperSettings(Section):
    """What becomes of a reservation of which nobody reports the end."""

    deadline_seconds: float = Field(default=900.0, gt=0, le=86_400)
    interval_seconds: float = Field(default=5.0, gt=0, le=3600)
    policy: Literal["estimate", "release", "review"] = "estimate"
    # An endpoint of its own; not needed where `server.metrics_dir` is shared with `serve`.
    metrics_listen: TcpAddress | None = None


class LocalViewSettings(Section):
    """Hot subjects are admitted from slices taken ahead (docs/local-view.md)."""

    enabled: bool = False
    # From so many requests a second of one subject at one worker.
    hot_requests_per_second: int = Field(default=50, ge=2, le=1_000_000)
    # A slice: of what is left of the tightest limit, and not more than these.
    share_percent: float = Field(default=1.0, ge=0.1, le=10)
    most_requests: int = Field(default=1000, ge=2, le=1_000_000)
    most_tokens: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    # None where more of a limit is used.
    used_at_most_percent: int = Field(default=50, ge=1, le=90)
    life_ms: int = Field(default=1000, ge=50, le=5000)
    # Held at once by one worker.
    slices_per_service: int = Field(default=4, ge=1, le=64)


class LogSettings(Section):
    """Structured logs go to standard error, one JSON object a line."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(BaseSettings):
    """All settings of a process."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    server: ServerSettings = ServerSettings()
    redis: RedisSettings = RedisSettings()
    database: DatabaseSettings = DatabaseSettings()
    identity: IdentitySettings = IdentitySettings()
    limits: LimitsSettings = LimitsSettings()
    admission: AdmissionSettings = AdmissionSettings()
    prices: tuple[PriceSettings, ...] = ()
    reaper: ReaperSettings = ReaperSettings()
    durability: DurabilitySettings = DurabilitySettings()
    local_view: LocalViewSettings = LocalViewSettings()
    ledger: LedgerSettings = LedgerSettings()
    log: LogSettings = LogSettings()

    def price_list(self) -> PriceList:
        """The prices as admission and `explain` look them up."""
        return PriceList(tuple(Price(**price.model_dump()) for price in self.prices))


_JSON_KEYS = frozenset(
    {
        *Settings.model_fields,
        "identity__sources",
        "identity__scopes",
        "admission__known_models",
        "durability__strict_roots",
    }
)


def _check_env_names(environ: Mapping[str, str]) -> None:
    """A misspelt variable must not be silently ignored."""
    for name in environ:
        if not name.startswith(ENV_PREFIX) or name.startswith(_NOT_SETTINGS):
            continue
        if "__" not in name and _SERVICE_LINK.fullmatch(name):
            continue
        section_name, _, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        section = Settings.model_fields.get(section_name)
        if section is None:
            raise SettingsError(name, f"there is no section {section_name!r}")
        model = section.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue  # a list, given whole as JSON
        if key and key.partition("__")[0] not in model.model_fields:
            raise SettingsError(name, f"section {section_name!r} has no key {key!r}")


def _malformed_json(environ: Mapping[str, str]) -> str | None:
    """The variable that pydantic reads as JSON (a list, a map, a whole section) and is none."""
    for name in environ:
        if not name.startswith(ENV_PREFIX) or name.startswith(_NOT_SETTINGS):
            continue
        if name.removeprefix(ENV_PREFIX).lower() not in _JSON_KEYS:
            continue
        try:
            json.loads(environ[name])
        except ValueError:
            return name
    return None


def _check_together(settings: Settings) -> None:
    """What sections say about each other."""
    admission, identity = settings.admission, settings.identity
    sources = (*identity.sources, *(one for some in identity.scopes.values() for one in some))
    check_idempotency_header(
        "admission.idempotency_header",
        admission.idempotency_header,
        also_taken=[source.name for source in sources if isinstance(source, HeaderSource)],
    )
    if admission.unknown_models == "refuse" and not (settings.prices or admission.known_models):
        raise SettingsError(
            "admission.unknown_models",
            "refuse needs [[prices]] or admission.known_models: without them no model is known",
        )
    if settings.local_view.enabled and admission.estimate == "strict":
        raise SettingsError("local_view.enabled", "not with admission.estimate = strict")
    if settings.durability.strict_roots and settings.durability.timeout_ms >= admission.timeout_ms:
        raise SettingsError("durability.timeout_ms", "must be below admission.timeout_ms")
    if admission.idempotency_ttl_seconds < settings.reaper.deadline_seconds:
        raise SettingsError(
            "admission.idempotency_ttl_seconds", "at least reaper.deadline_seconds is needed"
        )


def load_settings(path: Path | None = None) -> Settings:
    """Read all settings. Raises SettingsError that names the first wrong key."""
    _check_env_names(os.environ)
    if path is None and (named := os.environ.get("TOKENWEIR_CONFIG")):
        path = Path(named)
    if path is not None and not path.is_file():
        raise SettingsError("config", f"no such file: {path}")
    toml_file = path

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            if toml_file is None:
                return (env_settings,)
            return (env_settings, TomlConfigSettingsSource(settings_cls, toml_file))

    try:
        settings = FromFile()
    except ValidationError as error:
        first: Any = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "settings"
        is_unknown = first["type"] == "extra_forbidden"
        text = "there is no such key" if is_unknown else first["msg"].removeprefix("Value error, ")
        raise SettingsError(key, text) from error
    except ValueError as error:  # the TOML file or a JSON value in the environment is malformed
        if named := _malformed_json(os.environ):
            raise SettingsError(named, "expected JSON") from error
        raise SettingsError(str(path or "environment"), str(error)) from error
    _check_together(settings)
    return settings
