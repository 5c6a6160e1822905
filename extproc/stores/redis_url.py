"""``redis.url``: where Redis is, and for a cluster several nodes to begin with.

``redis://USER:PASSWORD@HOST:PORT,HOST:PORT/0?OPTION=VALUE``: scheme, user, password and options
hold for every node, also for those that only the cluster names. Standard library only: the settings
are checked with it.

What is not understood is refused: redis-py would leave out a database that is no number, take port
0 for 6379, and let options change what this client depends on. No message shows a part of the URL
but the name of an option, for what is misplaced may be a part of the password.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

DEFAULT_PORT = 6379
_MOST_START_NODES = 64
_HIGHEST_PORT = 65_535

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = ("redis://", "rediss://")
_TEXT = re.compile(r".+")
_FLAG = re.compile(r"(?i:true|false|yes|no|[01tfyn])")
# What an option may be. redis-py knows more, which would change time-outs, the protocol or replies.
_OPTIONS = {
    "db": re.compile(r"[0-9]{1,9}"),
    "username": _TEXT,
    "password": _TEXT,
    "client_name": re.compile(r"[!-~]+"),  # as CLIENT SETNAME has it
}
_TLS_OPTIONS = {
    "ssl_ca_certs": _TEXT,
    "ssl_ca_path": _TEXT,
    "ssl_ca_data": _TEXT,
    "ssl_certfile": _TEXT,
    "ssl_keyfile": _TEXT,
    "ssl_password": _TEXT,
    "ssl_ciphers": _TEXT,
    "ssl_cert_reqs": re.compile(r"none|optional|required"),
    "ssl_check_hostname": _FLAG,
    "ssl_min_version": re.compile(r"77[12]"),  # TLS 1.2 and 1.3, as ssl.TLSVersion numbers them
}


class Address(NamedTuple):
    """Where a node listens. An IPv6 address has no brackets here."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """A URL of a cluster, taken apart."""

    scheme: str
    credentials: str
    start_nodes: tuple[Address, ...]
    query: str

    def of(self, node: Address) -> str:
        """The URL of one node."""
        # An IPv6 address may have a zone, which begins with %.
        place = Address(quote(node.host, safe=":"), node.port)
        return f"{self.scheme}://{self.credentials}{place}/0{self.query}"


def usable(host: str, port: int) -> Address | None:
    """The address, or None for what cannot be one, such as port 0: nodes may say anything."""
    if not 0 < port <= _HIGHEST_PORT:
        return None
    if ":" in host:
        if not _IPV6.fullmatch(host):
            return None
        try:
            IPv6Address(host)
        except ValueError:
            return None
    elif not _NAME.fullmatch(host):
        return None
    return Address(host, port)


def check_redis_url(url: str, *, cluster: bool) -> None:
    """Raises ValueError, which never shows a password."""
    if cluster:
        parse_cluster_url(url)
        return
    if not url.startswith((*_PLAIN, "unix://")):
        raise ValueError("expected redis://, rediss:// or unix://")
    scheme, _, hosts, path, query = _split(url)
    if scheme == "unix":
        if hosts or len(path) < 2:
            raise ValueError("expected unix:///PATH of a socket")
        _options(scheme, query)
        return
    if "," in hosts:
        raise ValueError("several nodes need redis.cluster = true")
    _address(hosts, "the server")
    options = _options(scheme, query)
    if path not in ("", "/"):
        if not _OPTIONS["db"].fullmatch(path[1:]):
            raise ValueError("after the server comes / and the number of a database")
        if int(options.get("db", path[1:])) != int(path[1:]):
            raise ValueError("two databases")


def parse_cluster_url(url: str) -> ClusterUrl:
    """Raises ValueError for what no cluster can be reached by."""
    if not url.startswith(_PLAIN):
        raise ValueError("expected redis:// or rediss:// for a cluster")
    scheme, credentials, hosts, path, query = _split(url)
    nodes = hosts.split(",")
    if len(nodes) > _MOST_START_NODES:
        raise ValueError(f"{len(nodes)} nodes to begin with; {_MOST_START_NODES} at most")
    addresses = [_address(text, f"node {number}") for number, text in enumerate(nodes, start=1)]
    if path not in ("", "/", "/0") or _options(scheme, query).get("db", "0") != "0":
        raise ValueError("a cluster has database 0 only")
    return ClusterUrl(scheme, credentials, tuple(addresses), query)


def _split(url: str) -> tuple[str, str, str, str, str]:
    """Scheme, credentials with their @, hosts, path, query with its ?."""
    if _CONTROL.search(url):
        raise ValueError("control characters; in a password they are written as %0A")
    if "#" in url:
        raise ValueError("# has no meaning here; in a password it is written as %23")
    scheme, _, rest = url.partition("://")
    end = min((i for i in map(rest.find, "/?") if i >= 0), default=len(rest))
    credentials, at, hosts = rest[:end].rpartition("@")
    path, question, query = rest[end:].partition("?")
    if "@" in path and scheme != "unix":
        raise ValueError("@ after a /; in a password / is written as %2F")
    return scheme, credentials + at, hosts, path, question + query


def _options(scheme: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query[1:], keep_blank_values=True):
        if name in _TLS_OPTIONS and scheme != "rediss":
            raise ValueError(f"the option {name} needs rediss://")
        pattern = _OPTIONS.get(name) or _TLS_OPTIONS.get(name)
        if pattern is None:
            if "@" in query:
                raise ValueError("@ after a ?; in a password ? is written as %3F")
            known = ", ".join((*_OPTIONS, *_TLS_OPTIONS))
            raise ValueError(f"unknown option {name[:40]!r}; known are {known}")
        if name in found:
            raise ValueError(f"the option {name} is given twice")
        if not pattern.fullmatch(value):
            raise ValueError(f"a wrong value of the option {name}")
        found[name] = value
    return found


def _address(text: str, what: str) -> Address:
    address = None
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and not text.endswith(":"):
            port = DEFAULT_PORT if parts.port is None else parts.port
            address = usable(unquote(parts.hostname), port)
    except ValueError:
        pass  # its text would show ours
    if address is None:
        raise ValueError(f"{what} is not HOST or HOST:PORT")
    return address
