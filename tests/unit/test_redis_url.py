"""URLs of a cluster: several nodes to begin with, and what holds for all of them."""

import re

import pytest

from extproc.stores.redis_url import Address, check_redis_url, parse_cluster_url


def test_scheme_credentials_and_options_hold_for_every_node() -> None:
    url = parse_cluster_url("rediss://us%3Aer:p%40,w@one:7000,[::1]:7001,three/0?ssl_ca_certs=/ca")
    assert url.start_nodes == (Address("one", 7000), Address("::1", 7001), Address("three", 6379))
    options = "/0?ssl_ca_certs=/ca"
    assert url.of(Address("four", 1)) == f"rediss://us%3Aer:p%40,w@four:1{options}"
    assert url.of(Address("::2", 1)) == f"rediss://us%3Aer:p%40,w@[::2]:1{options}"


@pytest.mark.parametrize("url", ["redis://a", "redis://a/", "redis://a/0", "redis://a?db=0"])
def test_a_single_node_and_no_database_will_do(url: str) -> None:
    assert parse_cluster_url(url).start_nodes == (Address("a", 6379),)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("unix:///run/redis.sock", "for a cluster"),
        ("http://a", "for a cluster"),
        ("redis://secret@a/1", "database 0"),
        ("redis://secret@a?db=1", "database 0"),
        ("redis://secret@", "''"),
        ("redis://secret@a,,b", "''"),
        ("redis://secret@a,b:x", "'b:x'"),
        ("redis://secret@a:0", "'a:0'"),
        ("redis://secret@a:70000", "'a:70000'"),
        ("redis://secret@a, b", "' b'"),
        ("redis://secret@::1:6379", "'::1:6379'"),
        ("redis://secret@" + ",".join(["a"] * 65), "64 at most"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        check_redis_url(url, cluster=True)
    assert "secret" not in str(caught.value)


def test_one_server_is_one_host() -> None:
    check_redis_url("redis://user:p,w@a:1/5", cluster=False)
    check_redis_url("unix:///run/a,b.sock", cluster=False)
    for url in ("redis://a,b/0", "http://a"):
        with pytest.raises(ValueError, match=r"redis"):
            check_redis_url(url, cluster=False)
