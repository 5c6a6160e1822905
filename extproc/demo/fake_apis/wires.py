"""Chat completions, completions, embeddings and messages, which ``fake_orders`` reads
and ``fake_answers`` and ``fake_anthropic`` write, as APIs like the others."""

from collections.abc import Iterator

from extproc.demo.fake_answers import Frame, error_body, error_frame, plain_frame, stream_frames
from extproc.demo.fake_anthropic import message_frame, message_frames
from extproc.demo.fake_apis.api import Api, Call, Job
from extproc.demo.fake_orders import WIRE_OF_PATH, Order, Wire, read_order
from extproc.demo.provider_script import Script


def _order(job: Job) -> Order:
    order: Order = job.details["order"]
    return order


def _plain(job: Job, script: Script, number: int) -> Frame:
    order = _order(job)
    write = message_frame if order.wire == "anthropic" else plain_frame
    return write(order, script, number)


def _stream(job: Job, script: Script, number: int) -> Iterator[Frame]:
    order = _order(job)
    write = message_frames if order.wire == "anthropic" else stream_frames
    return write(order, script, number)


def wire_api(wire: Wire, pattern: str) -> Api:
    """The API of ``wire`` under a route. A route's ``{model}`` goes before the body's model."""

    def read(call: Call, script: Script) -> Job:
        order = read_order(wire, call.body, script, model=call.match.get("model"))
        return Job(
            model=order.model,
            stream=order.stream,
            input_tokens=order.input_tokens + sum(given for _, given, _ in order.others),
            output_tokens=order.output_tokens,
            capped=order.capped,
            choices=order.choices,
            details={"order": order},
        )

    return Api(
        name=wire,
        pattern=pattern,
        read=read,
        plain=_plain,
        stream=_stream,
        error_body=lambda status, message: error_body(wire, status, message),
        error_frame=lambda: error_frame(wire),
        order_error_body=lambda error: error_body(wire, 400, str(error), param=error.param),
    )


APIS = tuple(wire_api(wire, path) for path, wire in WIRE_OF_PATH.items())
