"""``redis.url``: where Redis is, and for a cluster several nodes to begin with.

``redis://USER:PASSWORD@HOST:PORT,HOST:PORT/0?OPTION=VALUE``: scheme, user, password and options
hold for every node, also for those that only the cluster names. Standard library only: the settings
are checked with it.
"""

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

DEFAULT_PORT = 6379
_MOST_START_NODES = 64


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
        return f"{self.scheme}://{self.credentials}{node}/0{self.query}"


def check_redis_url(url: str, *, cluster: bool) -> None:
    """Raises ValueError, which never shows a password."""
    if cluster:
        parse_cluster_url(url)
    elif not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected redis://, rediss:// or unix://")
    elif not url.startswith("unix://") and "," in _split(url)[2]:
        raise ValueError("several nodes need redis.cluster = true")


def parse_cluster_url(url: str) -> ClusterUrl:
    """Raises ValueError for what no cluster can be reached by."""
    if not url.startswith(("redis://", "rediss://")):
        raise ValueError("expected redis:// or rediss:// for a cluster")
    scheme, credentials, hosts, path, query = _split(url)
    if path not in ("", "/", "/0") or parse_qs(query[1:]).get("db", ["0"]) != ["0"]:
        raise ValueError("a cluster has database 0 only")
    nodes = hosts.split(",")
    if len(nodes) > _MOST_START_NODES:
        raise ValueError(f"{len(nodes)} nodes to begin with; {_MOST_START_NODES} at most")
    return ClusterUrl(scheme, credentials, tuple(map(_address, nodes)), query)


def _split(url: str) -> tuple[str, str, str, str, str]:
    """Scheme, credentials with their @, hosts, path, query with its ?."""
    scheme, _, rest = url.partition("://")
    end = min((i for i in map(rest.find, "/?#") if i >= 0), default=len(rest))
    credentials, at, hosts = rest[:end].rpartition("@")
    path, question, query = rest[end:].partition("#")[0].partition("?")
    return scheme, credentials + at, hosts, path, question + query


def _address(text: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not HOST or HOST:PORT") from error
    if not host or port == 0 or any(letter.isspace() for letter in host):
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    return Address(host, DEFAULT_PORT if port is None else port)
