"""The benchmark's load generator: its arithmetic and its reading of answers."""

import asyncio

import pytest

from tests.bench.load import ResponseReader, generate, percentile

SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nserver: x\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\na;name=value\r\n0\r\n\r\n56789\r\n0\r\nx-trailer: 1\r\n\r\n"
)


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(100, 50, 50), (100, 99, 99), (101, 50, 51), (1, 99, 1), (10, 99, 10), (10, 100, 10)],
)
def test_a_percentile_is_the_value_of_the_nearest_rank(
    count: int, percent: float, expected: float
) -> None:
    assert percentile(range(1, count + 1), percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_a_percentile_of_nothing_is_an_error(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


@pytest.mark.parametrize(("answer", "status"), [(SIZED, 200), (CHUNKED, 429)])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_response_ends_at_its_last_byte_however_it_is_cut(
    answer: bytes, status: int, size: int
) -> None:
    reader = ResponseReader()
    for _ in range(2):  # the second answer of a connection is read like the first
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        ends = [reader.feed(piece) for piece in pieces]
        assert ends == [False] * (len(pieces) - 1) + [True]
        assert reader.status == status


def test_an_empty_body_is_complete_with_its_head() -> None:
    assert ResponseReader().feed(b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize(
    "wrong",
    [
        SIZED + b"HTTP",
        CHUNKED + b"x",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhello\r\n",
    ],
)
def test_what_cannot_be_an_answer_is_an_error(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        ResponseReader().feed(wrong)


class Upstream:
    """Answers each request of 4 bytes by the next of ``answers``, and counts connections."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self.connections = 0
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readexactly(4):
                self.requests += 1
                if not self._answers:
                    return
                writer.write(self._answers.pop(0))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def run(upstream: Upstream, *, connections: int, each: int) -> dict[str, object]:
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        result = await generate(port, b"ping", connections=connections, seconds=5, each=each)
    return {
        "requests": result.requests,
        "statuses": result.statuses,
        "failed": result.failed,
        "not_200": result.not_200,
    }


async def test_every_answer_is_counted_by_its_status_on_kept_connections() -> None:
    upstream = Upstream([SIZED, CHUNKED, SIZED, SIZED, CHUNKED, SIZED])
    seen = await run(upstream, connections=2, each=3)
    assert seen == {"requests": 6, "statuses": {"200": 4, "429": 2}, "failed": 0, "not_200": 2}
    assert upstream.connections == 2
    assert upstream.requests == 6


async def test_a_lost_connection_is_no_answer() -> None:
    upstream = Upstream([SIZED, SIZED])
    seen = await run(upstream, connections=1, each=3)
    assert seen == {"requests": 2, "statuses": {"200": 2}, "failed": 1, "not_200": 1}
