"""URLs of a cluster: several nodes to begin with, and what holds for all of them."""

import re

import pytest

from extproc.stores.batcher import RedisBatcher
from extproc.stores.redis_url import Address, check_redis_url, parse_cluster_url, usable


def test_scheme_credentials_and_options_hold_for_every_node() -> None:
    url = parse_cluster_url("rediss://us%3Aer:p%40,w@one:7000,[::1]:7001,three/0?ssl_ca_certs=/ca")
    assert url.start_nodes == (Address("one", 7000), Address("::1", 7001), Address("three", 6379))
    options = "/0?ssl_ca_certs=/ca"
    assert url.of(Address("four", 1)) == f"rediss://us%3Aer:p%40,w@four:1{options}"
    assert url.of(Address("::2", 1)) == f"rediss://us%3Aer:p%40,w@[::2]:1{options}"


@pytest.mark.parametrize("url", ["redis://a", "redis://a/", "redis://a/0", "redis://a?db=0"])
def test_a_single_node_and_no_database_will_do(url: str) -> None:
    assert parse_cluster_url(url).start_nodes == (Address("a", 6379),)


WRONG_EVERYWHERE = [
    ("redis://", "HOST:PORT"),
    ("redis:///0", "HOST:PORT"),
    ("redis://:secret@", "HOST:PORT"),
    ("redis://secret@a:x", "HOST:PORT"),
    ("redis://secret@a:", "HOST:PORT"),
    ("redis://secret@a:0/0", "HOST:PORT"),
    ("redis://secret@a:70000", "HOST:PORT"),
    ("redis://secret@ex ample:1", "HOST:PORT"),
    ("redis://secret@::1:6379", "HOST:PORT"),
    ("redis://secret@[::1", "HOST:PORT"),
    ("redis://secret@a%2Fb", "HOST:PORT"),
    # What was not escaped is a part of the password.
    ("redis://:secret#x@a", "%23"),
    ("redis://:x#secret@a", "%23"),
    ("redis://:secret/x@a", "%2F"),
    ("redis://:x/secret@a", "%2F"),
    ("redis://:secret?x@a", "HOST:PORT"),
    ("redis://b?secret@a", "%3F"),
    ("redis://u:p@b?secret=x@a", "%3F"),
    ("redis://:secret\n@a", "%0A"),
    # Options that redis-py does not know, or knows and we do not want.
    ("redis://secret@a/0?foo=bar", "'foo'"),
    ("redis://secret@a/0?timeout=5", "'timeout'"),
    ("redis://secret@a/0?retry=1", "'retry'"),
    ("redis://secret@a/0?protocol=3", "'protocol'"),
    ("redis://secret@a/0?decode_responses=no", "'decode_responses'"),
    ("redis://secret@a/0?socket_timeout=1", "'socket_timeout'"),
    ("redis://secret@a/0?encoding_errors=strict", "'encoding_errors'"),
    ("redis://secret@a/0?encoding=utf-99", "'encoding'"),
    ("redis://secret@a/0?host=b", "'host'"),
    ("redis://secret@a/0?ssl_ca_certs=x", "rediss://"),
    ("rediss://secret@a/0?ssl_cert_reqs=foo", "ssl_cert_reqs"),
    ("rediss://secret@a/0?ssl_min_version=5", "ssl_min_version"),
    ("redis://a/0?client_name=a%20secret", "client_name"),
    ("redis://a/0?password=secret&password=x", "twice"),
    ("redis://secret@a/0?db=", "db"),
]


def assert_refused(url: str, why: str, *, cluster: bool) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        check_redis_url(url, cluster=cluster)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize(("url", "why"), WRONG_EVERYWHERE)
def test_what_is_wrong_is_said_without_the_password(url: str, why: str, cluster: bool) -> None:
    assert_refused(url, why, cluster=cluster)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("unix:///run/redis.sock", "for a cluster"),
        ("http://a", "for a cluster"),
        ("redis://secret@a/1", "database 0"),
        ("redis://secret@a?db=1", "database 0"),
        ("redis://secret@a,,b", "node 2"),
        ("redis://secret@a,b:x", "node 2"),
        ("redis://secret@a, b", "node 2"),
        ("redis://secret@" + ",".join(["a"] * 65), "64 at most"),
    ],
)
def test_what_is_wrong_for_a_cluster(url: str, why: str) -> None:
    assert_refused(url, why, cluster=True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a", "redis://"),
        ("redis://secret@a,b/0", "redis.cluster = true"),
        ("redis://secret@a/abc", "number of a database"),
        ("redis://secret@a//0", "number of a database"),
        ("redis://secret@a/-1", "number of a database"),
        ("redis://secret@a/1?db=2", "two databases"),
        ("unix://", "unix:///PATH"),
        ("unix://secret/run/redis.sock", "unix:///PATH"),
        ("unix:///run/redis.sock?protocol=3", "'protocol'"),
    ],
)
def test_what_is_wrong_for_one_server(url: str, why: str) -> None:
    assert_refused(url, why, cluster=False)


@pytest.mark.parametrize(
    "url",
    [
        "redis://a",
        "redis://user:p,w@a:1/5",
        "redis://user:pa ss@a/5?db=5",
        "redis://us@er:p%2F%23@a_b.c-d:1/",
        "redis://[::1]:1/0?username=u&password=p@w&client_name=x",
        "rediss://a/0?ssl_ca_certs=/ca&ssl_cert_reqs=none&ssl_check_hostname=False",
        "rediss://a/0?ssl_certfile=/c&ssl_keyfile=/k&ssl_min_version=772",
        "unix:///run/a,b.sock?db=2",
        "unix://user:pw@/run/redis.sock",
    ],
)
def test_one_server_is_one_host(url: str) -> None:
    check_redis_url(url, cluster=False)
    # It is also what the client can begin with.
    connection = RedisBatcher(url=url)._pool.make_connection()  # type: ignore[no-untyped-call]
    assert connection.protocol == 2


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("a", 0),
        ("a", -1),
        ("a", 65_536),
        ("", 1),
        ("?", 1),
        ("a b", 1),
        ("a/b", 1),
        ("a@b", 1),
        ("a#b", 1),
        ("a?b", 1),
        ("a,b", 1),
        ("a%41b", 1),
        ("[::1", 1),
        ("[::1]", 1),
        ("127.0.0.1:5", 1),
        ("fe80::1%a@b", 1),
        ("x" * 300, 1),
        ("\udcff", 1),
    ],
)
def test_no_node_has_such_an_address(host: str, port: int) -> None:
    assert usable(host, port) is None


@pytest.mark.parametrize("host", ["a", "a_b-c.d", "127.0.0.1", "::1", "fe80::1%eth0"])
def test_a_node_may_have_such_an_address(host: str) -> None:
    address = usable(host, 65_535)
    assert address == Address(host, 65_535)
    url = parse_cluster_url("redis://u:p@first").of(address)
    assert parse_cluster_url(url).start_nodes == (address,)
