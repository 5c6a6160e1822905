"""What one API of the fake provider is: a route, a reader of requests, a writer of answers.

Nothing here knows about sockets or aiohttp; ``fake_provider`` runs whatever is described so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from extproc.demo.fake_answers import Frame
from extproc.demo.fake_orders import OrderError
from extproc.demo.provider_script import Script


class Call(NamedTuple):
    """One HTTP request. ``path`` is as it came, percent-encoding kept and without the query;
    ``match`` is what the route's pattern captured, decoded."""

    path: str
    match: Mapping[str, str]
    query: Mapping[str, str]
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One accepted request. These numbers are the truth that goes into the journal.

    ``input_tokens``: what is due for the request, 0 where the API is free. ``output_tokens`` is
    per choice, the client's own cap applied; ``capped`` says that the cap cut it.
    ``details``: whatever the API's own frames need. ``content_type`` replaces the API's default.
    """

    model: str
    stream: bool
    input_tokens: int
    output_tokens: int = 0
    capped: bool = False
    choices: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)
    content_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One method of one provider, always a POST.

    ``pattern``: a route in aiohttp's words. ``read`` raises OrderError, answered with 400 in the
    API's own shape. ``plain`` and ``stream`` take the running number of the answer, for its id.
    ``error_frame``: an error in the middle of a stream.
    ``order_error_body``: the body of such a 400, where it says more than ``error_body`` can.
    ``plain_headers``: what a whole answer carries beside its body.
    ``error_headers``: by status, what an error carries beside its body.
    """

    name: str
    pattern: str
    read: Callable[[Call, Script], Job]
    plain: Callable[[Job, Script, int], Frame]
    stream: Callable[[Job, Script, int], Iterator[Frame]] | None = None
    error_body: Callable[[int, str], bytes]
    error_frame: Callable[[], Frame] | None = None
    order_error_body: Callable[[OrderError], bytes] | None = None
    plain_headers: Callable[[Job, Script], Mapping[str, str]] | None = None
    error_headers: Callable[[int], Mapping[str, str]] | None = None
    plain_type: str = "application/json"
    stream_type: str = "text/event-stream"
