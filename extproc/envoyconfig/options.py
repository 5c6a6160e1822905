"""What a rendered Envoy configuration depends on: checked here, before any message is built."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from extproc.core.errors import SettingsError
from extproc.core.header_names import IDENTITY_HEADER, check_idempotency_header
from extproc.core.ids import is_valid_id

# native: Envoy 1.40 and later; native-1.38: from 1.38 on.
Profile = Literal["inline", "observe", "native", "native-1.38"]
PROFILES = get_args(Profile)
FailureMode = Literal["closed", "open"]

AUTH_NAMESPACES = ("envoy.filters.http.jwt_authn", "envoy.filters.http.api_key_auth")
SYSTEM_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"

_SERVERS = "tokenweir_addresses"
_HEADER_NAME = re.compile(r"[a-z0-9_-]+")
# Clients have to send these, and providers to get them (or what is set in their place).
_KEPT_HEADERS = {
    *("authorization", "x-api-key", "x-goog-api-key", "api-key"),
    *("content-type", "content-encoding", "host"),
}
_PATH_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_MAX_BODY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address: a host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    socket_path: str | None = None

    @property
    def is_name(self) -> bool:
        """True when the host must be looked up in DNS."""
        if self.socket_path is not None:
            return False
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return True
        return False


@dataclass(frozen=True, slots=True)
class Upstream:
    """The provider behind Envoy. ``prefix`` is the path of its URL, without a final slash."""

    endpoint: Endpoint
    tls: bool
    prefix: str


def parse_endpoint(key: str, value: str) -> Endpoint:
    """Read ``HOST:PORT``, ``[V6]:PORT`` or ``unix:/path``; SettingsError names ``key``."""
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            raise SettingsError(key, "a unix socket needs an absolute path: unix:/path/to/socket")
        return Endpoint(socket_path=path)
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise SettingsError(key, "expected HOST:PORT or unix:/path/to/socket")
    if not 0 < int(port) < 65536:
        raise SettingsError(key, "a port is between 1 and 65535")
    return Endpoint(host, int(port))


def parse_upstream(url: str) -> Upstream:
    """Read the provider's base URL, ``http://`` or ``https://``, with an optional path."""
    key = "upstream_url"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(key, str(error)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(key, "expected http://HOST[:PORT][/PATH] or https://...")
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise SettingsError(key, "a query, a fragment or credentials have no place in this URL")
    tls = parts.scheme == "https"
    if port is None:
        port = 443 if tls else 80
    if port == 0:
        raise SettingsError(key, "a port is between 1 and 65535")
    return Upstream(Endpoint(parts.hostname, port), tls, parts.path.rstrip("/"))


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """Everything that a rendered configuration depends on; a wrong value raises SettingsError.

    ``tokenweir_addresses`` are where servers listen, ``HOST:PORT`` or ``unix:/path``: requests go
    to them in turn. Names and unix sockets cannot be mixed.
    ``upstream_headers`` are set on requests to the provider, in place of what the client sent.
    Their values may hold Envoy's substitutions, such as ``Bearer %ENVIRONMENT(OPENAI_API_KEY)%``,
    and a literal per cent sign is written ``%%``.
    ``api_keys`` maps a client's key to its service id; None or empty leaves authentication to the
    filters of whoever puts this into an existing Envoy.
    ``trusted_headers`` are request headers that admission sees beside the identity, for policies'
    scopes. Like the identity they are removed from what clients send, so that only a filter of this
    Envoy can set them, and removed again before the provider.
    ``front_headers`` are the same, but believed as they come: a proxy in front sets them and
    overwrites what clients send. Whoever reaches this Envoy past that proxy can be anybody.
    ``idempotency_header`` is the request header with a client's own idempotency key, as in the
    server's setting ``admission.idempotency_header``; None: the server does not see any.
    ``max_body_bytes`` should equal the server's setting ``server.max_body_bytes``.
    ``request_timeout_seconds`` bounds a whole request, its stream included.
    ``access_log_flush_seconds`` is how often Envoy says of a stream that it still runs, which
    renews its reservation; at most a third of ``reaper.deadline_seconds``: two may get lost.
    ``unmetered_prefixes`` are paths below which requests are authenticated, but neither counted
    nor limited.
    """

    upstream_url: str
    profile: Profile = "inline"
    listen_host: str = "127.0.0.1"
    listen_port: int = 8080
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
    tokenweir_addresses: tuple[str, ...] = ("127.0.0.1:18070",)
    tokenweir_health_check: bool = True
    upstream_headers: Mapping[str, str] = field(default_factory=dict)
    upstream_ca_file: str = SYSTEM_CA_FILE
    api_keys: Mapping[str, str] | None = field(default=None, repr=False)
    identity_header: str = IDENTITY_HEADER
    identity_namespaces: tuple[str, ...] = AUTH_NAMESPACES
    trusted_headers: tuple[str, ...] = ()
    front_headers: tuple[str, ...] = ()
    idempotency_header: str | None = None
    max_body_bytes: int = 16 * 1024 * 1024
    failure_mode: FailureMode = "closed"
    admission_timeout_ms: int = 1000
    metering_timeout_ms: int = 2000
    request_timeout_seconds: float = 900.0
    idle_timeout_seconds: float = 600.0
    access_log_flush_seconds: float = 60.0
    unmetered_prefixes: tuple[str, ...] = ()
    access_log_path: str | None = None

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise SettingsError("profile", f"{self.profile!r} is none of {', '.join(PROFILES)}")
        if self.failure_mode not in ("closed", "open"):
            raise SettingsError("failure_mode", "expected closed or open")
        for key, port in (("listen_port", self.listen_port), ("admin_port", self.admin_port)):
            if port is not None and not 0 < port < 65536:
                raise SettingsError(key, "a port is between 1 and 65535")
        if not 0 < self.max_body_bytes <= _MAX_BODY_BYTES:
            raise SettingsError("max_body_bytes", f"expected 1 to {_MAX_BODY_BYTES}")
        for key in ("admission_timeout_ms", "metering_timeout_ms"):
            if getattr(self, key) <= 0:
                raise SettingsError(key, "a time-out is more than 0")
        for key in ("request_timeout_seconds", "idle_timeout_seconds"):
            if not getattr(self, key) >= 1:
                raise SettingsError(key, "expected at least one second")
        if not 0.1 <= self.access_log_flush_seconds <= 3600:
            raise SettingsError("access_log_flush_seconds", "expected 0.1 to 3600")
        _check_header_name("identity_header", self.identity_header)
        if self.idempotency_header is not None:
            _check_header_name("idempotency_header", self.idempotency_header)
        check_idempotency_header(
            "idempotency_header", self.idempotency_header, also_taken=(self.identity_header,)
        )
        self._check_scope_headers()
        for name in self.upstream_headers:
            _check_header_name("upstream_headers", name)
        for prefix in self.unmetered_prefixes:
            if not _PATH_PREFIX.fullmatch(prefix):
                raise SettingsError(
                    "unmetered_prefixes", f"{prefix!r} is not a path like /v1/models"
                )
        for service_id in (self.api_keys or {}).values():
            if not is_valid_id(service_id):
                raise SettingsError("api_keys", f"{service_id!r} is not a valid service id")
        if "" in (self.api_keys or {}):
            raise SettingsError("api_keys", "a key is empty")
        _check_servers(self.tokenweir)
        parse_upstream(self.upstream_url)

    def _check_scope_headers(self) -> None:
        """Each header has one source: a filter here, the proxy in front, or the client."""
        taken = {self.identity_header, self.idempotency_header}
        for key in ("trusted_headers", "front_headers"):
            for name in getattr(self, key):
                _check_header_name(key, name)
                if name in _KEPT_HEADERS:
                    raise SettingsError(key, f"{name} cannot be removed: clients have to send it")
                if name in taken:
                    raise SettingsError(key, f"{name} is named already")
                taken.add(name)

    @property
    def is_native(self) -> bool:
        """True when Envoy's own filters read usage."""
        return self.profile.startswith("native")

    @property
    def private_headers(self) -> tuple[str, ...]:
        """The request headers that say whom a request belongs to: not for the provider."""
        return (self.identity_header, *self.trusted_headers, *self.front_headers)

    @property
    def tokenweir(self) -> tuple[Endpoint, ...]:
        """Where Envoy reaches the servers."""
        return tuple(parse_endpoint(_SERVERS, each) for each in self.tokenweir_addresses)

    @property
    def upstream(self) -> Upstream:
        """Where Envoy reaches the provider."""
        return parse_upstream(self.upstream_url)


def _check_servers(endpoints: tuple[Endpoint, ...]) -> None:
    if not endpoints:
        raise SettingsError(_SERVERS, "at least one is needed")
    if len(set(endpoints)) < len(endpoints):
        raise SettingsError(_SERVERS, "an address stands there twice")
    # Envoy looks up all addresses of a cluster or none, and a socket's path is not looked up.
    has_socket = any(endpoint.socket_path is not None for endpoint in endpoints)
    if has_socket and any(endpoint.is_name for endpoint in endpoints):
        raise SettingsError(_SERVERS, "a host name and a unix socket cannot be mixed")


def _check_header_name(key: str, name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise SettingsError(key, f"{name!r} is not a header name in lower case")
