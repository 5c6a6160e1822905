"""The stack that the other end-to-end tests stand on: it starts, survives kills, cleans up."""

import asyncio
import os
import signal
import time
from pathlib import Path

import openai
import pytest
import redis

from extproc.demo.processes import ChildError
from extproc.demo.stack import Stack, demo_key, http_get


async def ask(stack: Stack, text: str = "Hello") -> openai.types.CompletionUsage:
    """One plain chat; returns what it used."""
    async with openai.AsyncOpenAI(
        base_url=f"{stack.base_url}/v1",
        api_key=demo_key("svc-chat"),
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        answer = await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": text}]
        )
    assert answer.usage is not None
    return answer.usage


async def test_a_killed_child_can_be_started_again() -> None:
    async with Stack() as stack:
        stack.set_limits("svc-chat", rpm=100, tpm=10_000)
        await ask(stack)
        for name in ("serve", "envoy", "provider", "work"):
            stack.kill(name)
            assert stack.child(name).pid is None
            if name == "serve":
                with pytest.raises(openai.InternalServerError):
                    await ask(stack)
            stack.start_again(name)
            await ask(stack)
        assert http_get(stack.metrics_url)[0] == 200
        pids = [stack.child(name).pid for name in ("serve", "envoy", "provider", "valkey")]
        assert None not in pids
    assert not stack.run_dir.exists()
    assert http_get(stack.admin_url)[0] == 0


async def test_what_a_stopping_worker_learned_of_a_model_the_next_one_finds() -> None:
    async with Stack() as stack:
        stack.set_limits("svc-chat", rpm=100, tpm=100_000)
        await ask(stack, "Some words of a longer prompt. " * 40)
        pid = stack.child("serve").pid
        assert pid is not None
        with redis.Redis.from_url(stack.redis_url, decode_responses=True) as client:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 20
            while not client.hexists("factors:input", "openai|gpt-4o"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            learned = str(client.hget("factors:input", "openai|gpt-4o"))
        assert 500 <= int(learned.partition(":")[0]) <= 2000


def test_a_stack_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(run_dir=tmp_path, serve_env={"TOKENWEIR_REDIS__TIMEOUT_MS": "soon"})
    with pytest.raises(ChildError, match=r"redis\.timeout_ms"):
        stack.start()
    assert not any(stack.child(name).running for name in ("valkey", "provider", "serve"))
