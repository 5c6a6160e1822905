"""RESERVE: faults that others reported about what is reserved; see docs/known-faults.md.

"Say hi" has 2 tokens in the reports; with the frame of its message it is billed, and counted, as 9.
"""

import pytest
import redis

from extproc.core.estimates import EstimateMode
from extproc.stores.reservation_store import RedisReservationStore
from tests.support.admission import CHAT
from tests.support.gateway import Gateway
from tests.support.reservations import Inspector

INPUT = 9


async def test_of_two_caps_the_larger_is_reserved(gateway: Gateway, inspect: Inspector) -> None:
    """B001: a reserve of 3 for what may use 10,002."""
    inspect.cache(rpm=10, tpm=100_000)
    status, handle = await gateway.ask({**CHAT, "max_tokens": 1, "max_completion_tokens": 10_000})
    assert status == 200
    assert handle is not None
    assert handle.reserved_tokens == INPUT + 10_000
    assert inspect.used() == (1, INPUT + 10_000)


async def test_the_default_estimate_fits_a_limit_that_is_smaller(
    store: RedisReservationStore, inspect: Inspector
) -> None:
    """B002: a default of 1,024 tokens against a limit of 100 answered 429 for ever."""
    gateway = Gateway(store, mode=EstimateMode.QUANTILE, default_output_tokens=1024)
    inspect.cache(rpm=10, tpm=100)
    status, handle = await gateway.ask(CHAT)
    assert status == 200
    assert handle is not None
    assert inspect.used() == (1, 100)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12}}\n\n'
    await gateway.answer(handle, [usage, b"data: [DONE]\n\n"])
    assert inspect.used() == (1, INPUT + 12)
    gateway.close()


async def test_a_list_as_input_of_responses_is_never_reserved_as_one_token(
    gateway: Gateway, inspect: Inspector
) -> None:
    """B004, reserved 1 and settled 0."""
    inspect.cache(rpm=10, tpm=100_000)
    body = {
        "model": "gpt-4o",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Say hi"}]}],
        "max_output_tokens": 2048,
    }
    status, handle = await gateway.ask(body, path="/v1/responses")
    assert status == 200
    assert handle is not None
    assert handle.input_tokens > 2
    assert inspect.used() == (1, handle.reserved_tokens)
    assert handle.reserved_tokens > handle.input_tokens
    usage = b'{"input_tokens":9,"output_tokens":700,"total_tokens":709}'
    end = b'{"type":"response.completed","response":{"usage":' + usage + b"}}"
    await gateway.answer(handle, [b"event: response.completed\ndata: " + end + b"\n\n"])
    assert inspect.used() == (1, 709)
    gateway.close()


async def test_what_is_larger_than_the_limit_never_reaches_the_provider(
    gateway: Gateway, inspect: Inspector
) -> None:
    """B008: the limit was looked at after the spend. Limit 1,000, request for 5,000."""
    inspect.cache(rpm=10, tpm=1000)
    assert await gateway.ask({**CHAT, "max_tokens": 5000}) == (429, None)
    assert inspect.used() == (None, None)


@pytest.mark.parametrize("cap", [256, 0, -1, "abc"])
async def test_a_cap_is_reserved_as_it_is_or_refused(
    gateway: Gateway, inspect: Inspector, redis_client: redis.Redis, cap: object
) -> None:
    """B010: 256, 0 and -1 became 4,096, a text no number at all."""
    inspect.cache(rpm=10, tpm=100_000)
    before = redis_client.dbsize()
    status, handle = await gateway.ask({**CHAT, "max_tokens": cap})
    if cap == 256:
        assert handle is not None
        assert handle.reserved_tokens == INPUT + 256
        assert inspect.used() == (1, INPUT + 256)
    else:
        assert (status, handle) == (400, None)
        assert redis_client.dbsize() == before
