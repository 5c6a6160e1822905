"""The stack that the other end-to-end tests stand on: it starts, survives kills, cleans up."""

from pathlib import Path

import openai
import pytest

from extproc.demo.processes import ChildError
from extproc.demo.stack import Stack, demo_key, http_get


async def ask(stack: Stack) -> openai.types.CompletionUsage:
    """One plain chat; returns what it used."""
    async with openai.AsyncOpenAI(
        base_url=f"{stack.base_url}/v1",
        api_key=demo_key("svc-chat"),
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        answer = await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "Hello"}]
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


def test_a_stack_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(run_dir=tmp_path, serve_env={"TOKENWEIR_REDIS__TIMEOUT_MS": "soon"})
    with pytest.raises(ChildError, match=r"redis\.timeout_ms"):
        stack.start()
    assert not any(stack.child(name).running for name in ("valkey", "provider", "serve"))
