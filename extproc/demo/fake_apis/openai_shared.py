"""What the families of OpenAI's API have in common."""

from functools import partial
from typing import Any

from extproc.demo.fake_answers import Frame, as_json, error_body, error_frame
from extproc.demo.fake_apis.api import Api

CREATED = 1_760_000_000  # a fixed time: the same request always has the same answer


def sse(event: dict[str, Any], *, tokens: int = 0, has_usage: bool = False) -> Frame:
    """One event, named by its type as OpenAI names them."""
    name = str(event["type"]).encode()
    return Frame(b"event: " + name + b"\ndata: " + as_json(event) + b"\n\n", tokens, has_usage)


openai_api = partial(
    Api,
    error_body=lambda status, message: error_body("chat", status, message),
    error_frame=lambda: error_frame("chat"),
    order_error_body=lambda error: error_body("chat", 400, str(error), param=error.param),
)
