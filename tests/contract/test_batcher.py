"""RedisBatcher against a real Valkey, and against servers that misbehave."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
import redis

from extproc.app import _announce_readiness
from extproc.core.errors import SettingsError, StoreUnavailableError
from extproc.core.reservations import Admitted
from extproc.envoy_io.server import GrpcServer
from extproc.stores.batcher import MAX_BATCH, RedisBatcher
from extproc.stores.cluster import RedisCluster
from extproc.stores.reservation_store import RedisReservationStore
from extproc.stores.scripts import Script, load_script
from tests.support.fakes import RecordingTelemetry
from tests.support.processes import free_port
from tests.support.reservations import Inspector, request, settlement
from tests.support.tcp import Handler, silent, tcp_server

# Its clients have little patience.
pytestmark = pytest.mark.alone


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[str]:
    """A TCP server in place of Redis; gives its URL."""
    async with tcp_server(handler) as port:
        yield f"redis://127.0.0.1:{port}/0"


@asynccontextmanager
async def client(
    url: str, *, timeout_ms: int = 100, connections: int = 8
) -> AsyncIterator[RedisBatcher]:
    batcher = RedisBatcher(url=url, timeout_ms=timeout_ms, max_connections=connections)
    try:
        yield batcher
    finally:
        await batcher.close()


async def failure(call: Awaitable[object]) -> StoreUnavailableError:
    with pytest.raises(StoreUnavailableError) as caught:
        await call
    assert caught.value.store == "redis"
    return caught.value


async def test_every_caller_gets_its_own_reply(batcher: RedisBatcher) -> None:
    replies = await asyncio.gather(*(batcher.command("ECHO", str(i)) for i in range(1000)))
    assert replies == [str(i) for i in range(1000)]


async def test_an_error_reply_fails_only_its_own_call(batcher: RedisBatcher) -> None:
    results = await asyncio.gather(
        batcher.command("SET", "a", "text"),
        batcher.command("INCR", "a"),
        batcher.command("ECHO", "x"),
        return_exceptions=True,
    )
    assert results[0] == "OK"
    assert isinstance(results[1], StoreUnavailableError)
    assert not results[1].transient
    assert results[2] == "x"


async def test_calls_of_one_turn_travel_together() -> None:
    reads: list[bytes] = []

    async def count_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            reads.append(data)
            writer.write(b"+OK\r\n" * data.count(b"PING"))

    async with answering(count_reads) as url, client(url, timeout_ms=2000) as batcher:
        assert await asyncio.gather(*(batcher.command("PING") for _ in range(50))) == ["OK"] * 50
    assert len(reads) == 1


async def test_1000_cancelled_callers_leave_no_mismatched_replies(
    batcher: RedisBatcher,
) -> None:
    for round_number in range(10):
        doomed = [
            asyncio.create_task(batcher.command("ECHO", f"lost-{round_number}-{i}"))
            for i in range(100)
        ]
        # Cancelled at different moments: before the write, after it, in the middle of the replies.
        for _ in range(round_number % 4):
            await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        replies = await asyncio.gather(*(batcher.command("ECHO", str(i)) for i in range(20)))
        assert replies == [str(i) for i in range(20)]
        await asyncio.gather(*doomed, return_exceptions=True)


async def test_redis_away_fails_at_once() -> None:
    async with client(f"redis://127.0.0.1:{free_port()}/0") as lonely:
        error = await failure(lonely.command("PING"))
    assert error.transient
    assert not error.maybe_applied


async def test_a_server_that_never_answers_costs_one_timeout() -> None:
    async with answering(silent) as url, client(url) as batcher:
        started = time.monotonic()
        errors = await asyncio.gather(*(failure(batcher.command("PING")) for _ in range(20)))
        assert time.monotonic() - started < 1
        assert all(error.transient and error.maybe_applied for error in errors)


async def test_a_server_that_drips_does_not_stretch_the_timeout() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        while not reader.at_eof():
            writer.write(b"+OK\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with answering(drip) as url, client(url, timeout_ms=200) as batcher:
        started = time.monotonic()
        calls = [batcher.command("PING") for _ in range(100)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - started < 1
        assert results[0] == "OK"
        assert isinstance(results[-1], StoreUnavailableError)


async def test_a_pause_times_out_and_the_same_id_finds_what_was_done(
    redis_url: str, redis_client: redis.Redis, inspect: Inspector
) -> None:
    """The script runs after its caller gave up; asking again takes nothing more."""
    inspect.cache(rpm=10, tpm=10_000)
    async with client(redis_url, timeout_ms=200) as batcher:
        store = RedisReservationStore(batcher)
        await store.ping()
        redis_client.client_pause(600, all=True)
        error = await failure(store.reserve(request(rid="r1")))
        assert error.maybe_applied
        redis_client.ping()  # waits until the pause is over
        assert isinstance(await store.reserve(request(rid="r1")), Admitted)
        assert inspect.used() == (1, 110)
        await store.release(settlement("r1"))
        assert inspect.used() == (1, 0)


async def test_a_connection_that_redis_closed_is_replaced_and_nobody_notices() -> None:
    closed = asyncio.Event()

    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 20)
        writer.write(b"+OK\r\n")
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with answering(answers_once) as url, client(url, timeout_ms=2000) as batcher:
        for _ in range(3):
            assert await batcher.command("PING") == "OK"
            await closed.wait()
            closed.clear()
            for _ in range(20):  # turns of the loop in which our side sees the end
                await asyncio.sleep(0)


async def test_calls_that_found_no_connection_in_time_were_not_sent() -> None:
    async with answering(silent) as url, client(url, connections=1) as batcher:
        first = asyncio.create_task(failure(batcher.command("PING")))
        await asyncio.sleep(0)
        started = time.monotonic()
        later = await asyncio.gather(
            *(failure(batcher.command("PING")) for _ in range(MAX_BATCH + 1))
        )
        assert time.monotonic() - started < 1
        assert (await first).maybe_applied
        assert all(error.transient for error in later)
        assert "no connection was free" in str(later[-1])
        assert not later[-1].maybe_applied


async def test_eval_works_where_script_load_is_forbidden(
    redis_url: str, redis_client: redis.Redis, inspect: Inspector
) -> None:
    inspect.cache(rpm=10, tpm=1000)
    redis_client.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+pw"],
        keys=["*"],
        categories=["+@all"],
        commands=["-script"],
    )
    try:
        async with client(redis_url.replace("://", "://limited:pw@"), timeout_ms=2000) as batcher:
            store = RedisReservationStore(batcher)
            redis_client.script_flush()
            await store.ping()
            assert isinstance(await store.reserve(request()), Admitted)
    finally:
        redis_client.acl_deluser("limited")


async def test_wrong_credentials_are_not_transient(redis_url: str) -> None:
    async with client(redis_url.replace("://", "://nobody:pw@"), timeout_ms=2000) as batcher:
        error = await failure(batcher.command("PING"))
    assert not error.transient
    assert not error.maybe_applied


async def test_a_password_that_is_missing_is_named(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """A long call gets a protocol error then, and no word about passwords."""
    redis_client.config_set("requirepass", "geheim")
    try:
        async with client(redis_url, timeout_ms=2000) as batcher:
            error = await failure(batcher.command("SCRIPT", "LOAD", "-- " + "x" * 20_000))
    finally:
        redis_client.config_set("requirepass", "")
    assert "a password is missing in redis.url" in str(error)
    assert not error.transient
    assert not error.maybe_applied


async def test_an_unknown_script_is_sent_once_more_with_its_source() -> None:
    seen: list[bytes] = []

    async def forgetful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            seen.append(data)
            writer.write(b"-NOSCRIPT No matching script.\r\n")

    async with answering(forgetful) as url, client(url, timeout_ms=2000) as batcher:
        error = await failure(batcher.run(Script("s", "return 1", "f" * 40), (), ()))
    assert not error.maybe_applied
    assert [b"EVALSHA" in data for data in seen] == [True, False]
    assert b"return 1" in seen[1]


async def test_losing_the_connection_between_noscript_and_eval_answers_everybody() -> None:
    async def fickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 20)
        writer.write(b"-NOSCRIPT No matching script.\r\n")

    script = load_script("settle")
    async with answering(fickle) as url, client(url, timeout_ms=500) as batcher:
        calls = (failure(batcher.run(script, ("a", "b", "c", "d"), ())) for _ in range(3))
        async with asyncio.timeout(5):
            assert all(error.transient for error in await asyncio.gather(*calls))


async def test_a_replica_is_left_at_once() -> None:
    connections = 0

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.read(1 << 20):
            writer.write(b"-READONLY You can't write against a read only replica.\r\n")

    async with answering(replica) as url, client(url, timeout_ms=2000) as batcher:
        for _ in range(2):
            error = await failure(batcher.command("INCR", "a"))
            assert error.transient
            assert not error.maybe_applied
    assert connections == 2


@pytest.mark.parametrize(
    ("reply", "transient"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", True),
        (b"-BUSY Redis is busy running a script.\r\n", True),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", True),
        (b"-MASTERDOWN Link with MASTER is down\r\n", True),
        (b"-NOPERM this user has no permissions\r\n", False),
    ],
)
async def test_refusals_that_did_not_run(reply: bytes, transient: bool) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 20):
            writer.write(reply)

    async with answering(refuse) as url, client(url, timeout_ms=2000) as batcher:
        error = await failure(batcher.command("INCR", "a"))
    assert (error.transient, error.maybe_applied) == (transient, False)


@pytest.mark.parametrize(
    "reply",
    [b"-MOVED 1\r\n", b"-MOVED x 127.0.0.1:1\r\n", b"-ASK 1 127.0.0.1\r\n"],
)
async def test_a_reply_that_cannot_be_read_is_an_answer(reply: bytes) -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 20):
            writer.write(reply)

    async with answering(mumble) as url, client(url, timeout_ms=2000) as batcher:
        for _ in range(2):
            error = await failure(batcher.command("INCR", "a"))
            assert (error.transient, error.maybe_applied) == (True, True)
            assert "stopped" not in str(error)


async def test_a_connection_that_cannot_be_made_is_an_answer(batcher: RedisBatcher) -> None:
    """A caller without one would wait for ever, and so would the end of the process."""
    batcher._idle.clear()
    batcher._pool.connection_kwargs["nonsense"] = 1
    async with asyncio.timeout(5):
        error = await failure(batcher.command("PING"))
    assert "nonsense" in str(error)
    assert not error.maybe_applied


@pytest.mark.parametrize("kind", [RedisBatcher, RedisCluster])
@pytest.mark.parametrize(
    "options", ["redis://a/0?foo=bar", "redis://a/0?protocol=3", "rediss://a/0?ssl_cert_reqs=foo"]
)
async def test_a_url_that_is_not_understood_stops_the_start(
    kind: type[RedisBatcher | RedisCluster], options: str
) -> None:
    with pytest.raises(SettingsError, match=r"^redis\.url: "):
        kind(url=options)


async def test_a_process_that_waits_for_redis_can_be_stopped() -> None:
    asked, stop, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await ended.wait()

    server = GrpcServer(listen="127.0.0.1:0", max_body_bytes=1, telemetry=RecordingTelemetry())
    async with answering(mute) as url, client(url, timeout_ms=60_000) as batcher:
        waiting = asyncio.create_task(
            _announce_readiness(server, RedisReservationStore(batcher), stop)
        )
        await asked.wait()
        await asyncio.sleep(0)
        assert not waiting.done()
        stop.set()
        await asyncio.wait((waiting,), timeout=5)
        ended.set()
        assert waiting.done()
        await waiting


async def test_closing_lets_running_calls_end_and_refuses_new_ones(redis_url: str) -> None:
    batcher = RedisBatcher(url=redis_url, timeout_ms=2000)
    calls = [asyncio.create_task(batcher.command("ECHO", str(i))) for i in range(600)]
    await asyncio.sleep(0)
    await batcher.close()
    assert await asyncio.gather(*calls) == [str(i) for i in range(600)]
    assert not (await failure(batcher.command("PING"))).transient
