"""The whole product on a real Redis Cluster, through a real Envoy."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from extproc.demo.stack import Stack
from extproc.stores.client import open_client
from extproc.stores.limit_admin import LimitAdmin
from extproc.stores.limit_table import LimitTable
from extproc.stores.sql import Database
from tests.support.client import CHAT, StackClient, eventually
from tests.support.cluster import ValkeyCluster

STREAM = {**CHAT, "stream": True}


TESTS = ("plain", "reaper", "orderly", "killed", "error")


@pytest.fixture(scope="module")
def stack(
    running_cluster: ValkeyCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One for all tests; each has a service of its own in every master."""
    services = [root for name in TESTS for root in running_cluster.roots(name)]
    with Stack(
        run_dir=tmp_path_factory.mktemp("on-cluster"),
        services=services,
        redis_url=running_cluster.url,
        redis_cluster=True,
        reaper_deadline_seconds=6.0,
    ) as stack:
        asyncio.run(set_limits(stack, services))
        yield stack


async def set_limits(stack: Stack, services: list[str]) -> None:
    """As `tokenweir limits set`, without a process for each."""
    redis = open_client(url=stack.redis_url, cluster=True, timeout_ms=5000)
    database = Database(url=stack.database_url, timeout_ms=10_000)
    admin = LimitAdmin(redis, LimitTable(database))
    for service in services:
        await admin.set(service, rpm=1000, tpm=1_000_000)
    await redis.close()
    await database.close()


@contextmanager
def clients(stack: Stack, cluster: ValkeyCluster, name: str) -> Iterator[list[StackClient]]:
    """One in each master; each looks into Redis at its own."""
    services = [service for service in stack.services if service.startswith(f"{name}-")]
    made = [
        StackClient(stack, service, cluster.owner(f"{{{service}}}").client) for service in services
    ]
    yield made
    for client in made:
        client.close()


def test_every_service_is_admitted_settled_and_explained(
    stack: Stack, cluster: ValkeyCluster
) -> None:
    with clients(stack, cluster, "plain") as services:
        first, second, third = services
        assert len({client.redis for client in services}) == 3
        for client in services:
            assert client.post(fake="output=37").status == 200
            assert client.post(STREAM, fake="output=20").status == 200
            records = client.settled(2)
            assert {record["outcome"] for record in records} == {"complete"}
            charged = sum(int(record["charged"]) for record in records)
            assert (client.counted("rpm"), client.counted("tpm")) == (2, charged)
        # The command looks into the slot of whom it is asked about.
        record = second.records()[0]
        by_id = (record["request_id"], "--root", second.service, "--json")
        assert f'"charged_tokens": {record["charged"]},' in stack.cli("explain", *by_id)
        by_subject = ("--service", third.service, "--model", "gpt-4o", "--json")
        report = json.loads(stack.cli("explain", *by_subject))
        assert {limit["label"]: limit["used"] for limit in report["limits"]} == {
            "service_limit/rpm": 2,
            "service_limit/total_tpm": third.counted("tpm"),
        }
        # A change clears the cache of its slot.
        first.limit(rpm=2, tpm=1_000_000)
        refused = first.post()
        assert refused.status == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def test_the_reaper_finds_what_a_killed_server_left_in_any_slot(
    stack: Stack, cluster: ValkeyCluster
) -> None:
    with clients(stack, cluster, "reaper") as services:
        connections = []
        for client in services:
            connection = client.connection()
            fake = client.headers("output=5;delay_ms=3000")
            connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), fake)
            connections.append(connection)
        # Not at the reserve: the server's answer to Envoy comes a moment after it.
        eventually(lambda: services[0].upstream_active() == len(services))
        stack.kill("serve")
        try:
            for connection in connections:
                assert connection.getresponse().read().endswith(b"[DONE]\n\n")
                connection.close()
        finally:
            stack.start_again("serve")
        for client in services:
            (record,) = client.settled(1)
            assert record["charged"] == record["reserved"]


def is_charged(client: StackClient, wanted: list[int]) -> bool:
    """Nothing is open, and the window holds what the records say, which is one of ``wanted``."""
    charged = sum(int(record["charged"]) for record in client.records())
    return client.pending() == 0 and client.counted("tpm") == charged and charged in wanted


@pytest.mark.parametrize("how", ["orderly", "killed"])
def test_a_failover_is_a_few_503s_and_charges_nothing_twice(
    stack: Stack, cluster: ValkeyCluster, how: str
) -> None:
    with clients(stack, cluster, how) as services:
        hit = services[0]
        statuses: dict[str, list[int]] = {client.service: [] for client in services}
        stop = threading.Event()

        def ask(client: StackClient) -> None:
            while not stop.is_set():
                statuses[client.service].append(client.post(fake="output=20;label=load").status)

        threads = [threading.Thread(target=ask, args=(client,)) for client in services]
        for thread in threads:
            thread.start()

        def answered(count: int) -> None:
            before = {name: found.count(200) for name, found in statuses.items()}
            eventually(
                lambda: all(
                    found.count(200) >= before[name] + count for name, found in statuses.items()
                ),
                seconds=30,
            )

        try:
            answered(5)
            master = cluster.owner(f"{{{hit.service}}}")
            if how == "orderly":
                cluster.failover(master)
            else:
                master.process.kill()
            answered(20)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        hit.redis = cluster.owner(f"{{{hit.service}}}").client
        for client in services:
            found = statuses[client.service]
            assert set(found) <= {200, 503}
            ok = found.count(200)
            # A reserve without an answer is given back: its tokens do not count. Replication is
            # asynchronous: a killed master may take its last word with it.
            lost = 5 if how == "killed" and client is hit else 0
            wanted = [29 * (ok - number) for number in range(lost + 1)]
            eventually(partial(is_charged, client, wanted), seconds=30)
        if how == "killed":
            assert 503 in statuses[hit.service]
        cluster.heal()


def test_a_script_that_fails_is_a_503_that_is_counted(stack: Stack, cluster: ValkeyCluster) -> None:
    """Never a reason to let everything through."""
    with clients(stack, cluster, "error") as services:
        client = services[0]
        assert client.post().status == 200
        client.settled(1)
        pending = f"pending:{{{client.service}}}"
        client.redis.delete(pending)
        client.redis.set(pending, "of another type")
        before = client.metric("tokenweir_refusals_total", reason="redis_unavailable")
        refused = client.post()
        assert refused.status == 503
        assert refused.json["error"]["code"] == "limiter_unavailable"
        assert client.metric("tokenweir_refusals_total", reason="redis_unavailable") == before + 1
        assert client.metric("tokenweir_failed_open_total") == 0
