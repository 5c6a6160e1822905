"""What the floor does of a request: to admit it, and to settle it."""

import json
import os
from collections.abc import Sequence
from itertools import count
from typing import Any

import grpc

from extproc.core.handles import METERED_KEY, NAMESPACE, Profile
from extproc.core.reservations import Source
from extproc.providers.counting import PER_ANSWER, PER_MESSAGE
from extproc.providers.tokens import count_tokens
from tests.bench.floor_messages import ProcessingRequest, StreamAccessLogsMessage, TokenUsage
from tests.bench.floor_redis import FloorRedis
from tests.bench.floor_words import (
    Templates,
    admitted_answer,
    handle_text,
    number_word,
    templates_of,
)
from tests.bench.traffic import PLAUSIBLE_REPLY

STEPS = ("answer", "read", "reply", "reserve", "ending", "settle")
_ANSWER, _READ, _REPLY, _RESERVE, _ENDING, _SETTLE = range(len(STEPS))
_ATTRIBUTES = "envoy.filters.http.ext_proc"
_SERVICE_ID = "request.headers['x-tokenweir-service']"
_TOKEN_USAGE = "envoy.ai.token_usage"
_decode = json.JSONDecoder().decode


class FloorWork:
    """``answer``: what is said where no answer of the request's own is made."""

    def __init__(self, step: int, profile: Profile, redis: FloorRedis, answer: bytes) -> None:
        self._step = step
        self._profile = profile
        self._redis = redis
        self._answer = answer
        self._source = Source.ENDING if profile == "native" else Source.METERING
        self._templates: dict[tuple[str, str], Templates] = {}
        # An id need not be random: this process' own word, and a number.
        self._ids = map(f"{os.urandom(8).hex()}%016x".__mod__, count())
        # Profile observe: settled, and not in the access log yet; or the other way round.
        self._unmatched: set[str] = set()

    def _templates_of(self, root: str, model: str) -> Templates:
        found = self._templates.get((root, model))
        if found is None:
            found = self._templates[root, model] = templates_of(root, model, self._source)
        return found

    async def admit(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """The answer to a request."""
        del context
        if self._step == _ANSWER:
            return self._answer
        message: Any = ProcessingRequest.FromString(data)
        fields = message.attributes[_ATTRIBUTES].fields
        path = fields["request.path"].string_value
        request_id = fields["request.id"].string_value
        root = fields[_SERVICE_ID].string_value
        body = _decode(message.request_body.body.decode())
        assert path
        model, cap = body["model"], body["max_tokens"]
        tokens = PER_ANSWER
        for each in body["messages"]:
            tokens += PER_MESSAGE + count_tokens(each["content"])
        if self._step == _READ:
            return self._answer
        templates = self._templates_of(root, model)
        reservation_id = next(self._ids).encode()
        reply: Sequence[Any] = PLAUSIBLE_REPLY
        if self._step >= _RESERVE:
            words = (
                reservation_id,
                reservation_id,
                number_word(tokens),
                number_word(cap),
                len(request_id),
                request_id.encode(),
            )
            reply = await self._redis.send(templates.reserve % words)
        handle = handle_text(
            self._profile,
            input_tokens=reply[2],
            reserved_tokens=reply[3],
            request_id=request_id,
        )
        return admitted_answer(templates, reservation_id, handle, reply)

    def settle_body(self, head: bytes, body: bytes) -> None:
        """An answer that was seen to its end. ``head``: the message of its headers."""
        message: Any = ProcessingRequest.FromString(head)
        fields = message.metadata_context.filter_metadata[NAMESPACE].fields
        usage = _usage_of(body)
        reservation_id = fields["rid"].string_value
        if self._profile == "observe":
            self._match(reservation_id)
        self._settle(
            reservation_id,
            fields["root"].string_value,
            fields["model"].string_value,
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )

    def read_entries(self, data: bytes) -> None:
        """The entries of one message of an access log stream."""
        message: Any = StreamAccessLogsMessage.FromString(data)
        for entry in message.http_logs.log_entry:
            metadata = entry.common_properties.metadata
            fields = metadata.filter_metadata[NAMESPACE].fields
            if METERED_KEY in fields or "rid" not in fields:
                continue
            reservation_id = fields["rid"].string_value
            if self._profile == "native":
                usage: Any = TokenUsage.FromString(
                    metadata.typed_filter_metadata[_TOKEN_USAGE].value
                )
                self._settle(
                    reservation_id,
                    fields["root"].string_value,
                    fields["model"].string_value,
                    usage.input.value,
                    usage.output.value,
                )
            elif self._profile == "observe":
                self._match(reservation_id)

    def _match(self, reservation_id: str) -> None:
        """Copies and entry of one request come in either order."""
        if reservation_id in self._unmatched:
            self._unmatched.remove(reservation_id)
        else:
            self._unmatched.add(reservation_id)

    def _settle(self, reservation_id: str, root: str, model: str, given: int, made: int) -> None:
        if self._step < _SETTLE:
            return
        known = reservation_id.encode()
        template = self._templates_of(root, model).settle
        words = (known, known, number_word(given), number_word(made))
        self._redis.send_later(template % words)


def _usage_of(body: bytes) -> dict[str, int]:
    """The usage of a whole answer. Of a stream only the event that has it is read, from the end."""
    usage: dict[str, int]
    if not body.startswith(b"data:"):
        usage = _decode(body.decode())["usage"]
        return usage
    end = len(body)
    while (at := body.rfind(b'"usage"', 0, end)) >= 0:
        end = body.rfind(b"\n", 0, at) + 1
        line = body[end + len(b"data:") : body.find(b"\n", at)]
        usage = _decode(line.decode()).get("usage")
        if usage:
            return usage
    raise ValueError("a stream without usage")
