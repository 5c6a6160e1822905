"""Strict durability with everything real: SQL knows a request before the provider does, or the
client gets a 503; and nothing is asked of SQL for anybody else."""

import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from extproc.demo.stack import Stack
from tests.support import mariadb
from tests.support.client import CHAT, StackClient, eventually
from tests.support.executions import Book
from tests.support.faulty_serve import VARIABLE

STRICT = {
    "TOKENWEIR_DURABILITY__STRICT_ROOTS": '["strict*"]',
    "TOKENWEIR_DURABILITY__TIMEOUT_MS": "1500",
    # The machine may be busy; it is SQL that these tests make slow.
    "TOKENWEIR_ADMISSION__TIMEOUT_MS": "5000",
}
PATIENT = {"admission_timeout_ms": 8000, "metering_timeout_ms": 8000}
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


@contextmanager
def client_of(stack: Stack, service: str) -> Iterator[StackClient]:
    with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
        client = StackClient(stack, service, connection)
        client.limit(rpm=100_000, tpm=10_000_000)
        yield client
        client.close()


@contextmanager
def provider_that_asks(book: Book) -> Iterator[tuple[str, list[list[Any]]]]:
    """A provider that looks into the database when it is called, before it answers."""
    seen: list[list[Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            name = self.headers["x-request-id"]
            query = (
                "SELECT e.state, o.event_type FROM execution e JOIN outbox o "
                f"ON o.reservation_id = e.reservation_id WHERE e.request_id = '{name}'"
            )
            seen.append([tuple(row) for row in book.ask(query)])
            body = json.dumps(ANSWER).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_sql_knows_a_request_before_the_provider_and_asks_nothing_for_others(
    tmp_path: Path,
) -> None:
    with mariadb.mariadb_server(tmp_path) as server_url:
        database = mariadb.make_database(server_url)
        book = Book(database)
        with (
            provider_that_asks(book) as (url, seen),
            Stack(
                services=("strict-1", "plain"),
                database_url=database,
                upstream_url=url,
                serve_env=STRICT,
                envoy_options=PATIENT,
                with_work=False,
            ) as stack,
            client_of(stack, "strict-1") as strict,
            client_of(stack, "plain") as plain,
        ):
            for _ in range(5):
                assert strict.post().status == 200
            with ThreadPoolExecutor(20) as threads:
                answers = list(threads.map(lambda _: strict.post().status, range(60)))
            assert answers == [200] * 60
            assert len(seen) == 65
            for rows in seen:
                assert rows in (
                    [("READY", "request.admitted")],
                    [("DISPATCHING", "request.admitted")],
                )
            eventually(lambda: set(book.states().values()) == {"DONE"})
            assert len(book.states()) == 65

            assert plain.post().status == 200  # its limits are cached now
            asked = book.counter("Questions")
            own = book.counter("Questions") - asked  # what one look costs
            for _ in range(30):
                assert plain.post().status == 200
            assert seen[-1] == []
            # The provider asks once for each.
            assert book.counter("Questions") - asked == 30 * own + 2 * own
            assert len(book.states()) == 65
        book.close()


def test_without_sql_a_strict_root_gets_503_and_everything_back(tmp_path: Path) -> None:
    with mariadb.mariadb_server(tmp_path) as server_url:
        pid = int((tmp_path / "mariadb.pid").read_text())
        database = mariadb.make_database(server_url)
        book = Book(database)
        with (
            Stack(
                services=("strict-1", "plain"),
                database_url=database,
                serve_env=STRICT,
                envoy_options=PATIENT,
                with_work=False,
            ) as stack,
            client_of(stack, "strict-1") as strict,
            client_of(stack, "plain") as plain,
        ):
            assert strict.post(fake="label=first").status == 200
            assert plain.post().status == 200
            strict.settled(1)
            before = strict.counted("rpm"), strict.counted("tpm")

            def refused(path: str, body: object) -> Any:
                answer = strict.post(body, path=path, fake="label=refused")
                assert answer.status == 503, answer
                assert answer.headers["retry-after"] == "1"
                eventually(lambda: not strict.pending())
                eventually(lambda: (strict.counted("rpm"), strict.counted("tpm")) == before)
                return answer.json

            os.kill(pid, signal.SIGSTOP)
            try:
                openai = refused("/v1/chat/completions", CHAT)
                anthropic = refused(
                    "/v1/messages", {**CHAT, "model": "claude-sonnet-4-5", "max_tokens": 10}
                )
                # Nobody else waits for SQL.
                assert plain.post().status == 200
            finally:
                os.kill(pid, signal.SIGCONT)
            assert openai["error"]["code"] == "limiter_unavailable"
            assert anthropic["type"] == "error"
            # What the server still did when it woke does not stay ready.
            eventually(lambda: strict.post(fake="label=awake").status == 200)
            eventually(lambda: set(book.states().values()) <= {"DONE", "CANCELED"})
            eventually(lambda: list(book.states().values()).count("DONE") == 2)
            eventually(lambda: not strict.pending())
            before = strict.counted("rpm"), strict.counted("tpm")

            os.kill(pid, signal.SIGKILL)
            refused("/v1/chat/completions", CHAT)
            assert plain.post().status == 200
            assert strict.journal("refused") == []
        book.close()


@pytest.mark.parametrize("step", ["admission.reply.before", "metering.headers"])
def test_a_server_killed_after_the_commit_is_for_review_and_nothing_is_sent_again(
    step: str, mariadb_url: str
) -> None:
    module = ["-m", "tests.support.faulty_serve", "serve"]
    book = Book(mariadb_url)
    with (
        Stack(
            services=("strict-1",),
            database_url=mariadb_url,
            reaper_deadline_seconds=2,
            serve_env={**STRICT, VARIABLE: step},
            work_env=STRICT,
            envoy_options=PATIENT,
            commands={"serve": [sys.executable, *module]},
        ) as stack,
        client_of(stack, "strict-1") as strict,
    ):
        strict.post({**CHAT, "stream": True}, fake="label=killed")
        eventually(lambda: not stack.child("serve").running)
        assert list(book.states().values()) in (["READY"], ["DISPATCHING"])
        sent = len(strict.journal("killed"))
        assert sent == (step != "admission.reply.before")
        stack.start_again("serve", env={VARIABLE: ""})
        eventually(lambda: list(book.states().values()) == ["REVIEW"])
        assert strict.post(fake="label=alive").status == 200
        eventually(lambda: sorted(book.states().values()) == ["DONE", "REVIEW"])
        assert len(strict.journal("killed")) == sent
    book.close()
