"""Metering: reads the answer as it passes (profile ``inline``) or copies of it (``observe``), and
settles at its end.

The loop of a stream ends alike when Envoy half-closes, when the client leaves and when the upstream
breaks (measured with grpcio 1.85), so only Envoy's end of stream or trailers mean "complete".
Anything else ends in ``finally``, which hands the settlement over without awaiting, because the
first await there is killed.

A chunk that takes long is read in turns with everything else on the loop. Whatever then is still to
be read at the end, of a chunk or of a whole document, is read by the settlement's own task.
"""

from collections.abc import Callable
from concurrent.futures import Executor

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.learned_factors import LearnedFactors
from extproc.core.metered import Metered
from extproc.core.ports import Telemetry
from extproc.core.settler import Settler
from extproc.envoy_io.metered_answer import TAKES_LONG, MeteredAnswer
from extproc.envoy_io.turns import Turns


class Metering:
    """Makes one object per stream, which owns all state of that answer."""

    def __init__(
        self,
        settler: Settler,
        telemetry: Telemetry,
        *,
        is_stopping: Callable[[], bool],
        metered: Metered | None = None,
        learned: LearnedFactors | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._settler = settler
        self._metered = metered
        self._telemetry = telemetry
        self._is_stopping = is_stopping
        self._learned = learned
        self._executor = executor
        self._turns = Turns()

    async def process(self, context: grpc.aio.ServicerContext) -> None:
        """One ext_proc stream."""
        answer = self._new_answer()
        try:
            while not answer.done:
                message: pb.ProcessingRequest = await context.read()
                if message is grpc.aio.EOF:
                    return
                reply = answer.on_message(message)
                if reply is None:
                    return
                if reply is TAKES_LONG:
                    reply = await answer.on_long_body(message.response_body)
                await context.write(reply)
        finally:
            answer.close()

    async def observe(self, context: grpc.aio.ServicerContext) -> None:
        """One ext_proc stream in observability mode: nobody waits for a word of ours, and none can
        carry the mark of a settlement, so that this process remembers it for the ending."""
        answer = self._new_answer()
        try:
            while not answer.done:
                message: pb.ProcessingRequest = await context.read()
                if message is grpc.aio.EOF:
                    return
                reply = answer.on_message(message)
                if reply is None:
                    return
                if reply is TAKES_LONG:
                    await answer.on_long_body(message.response_body)
        finally:
            # Envoy keeps this stream until we return, or for as long as the include says.
            answer.close()
            settled = answer.settled_id
            if settled is not None and self._metered is not None:
                self._metered.add(settled)

    def _new_answer(self) -> MeteredAnswer:
        return MeteredAnswer(
            self._settler,
            self._telemetry,
            is_stopping=self._is_stopping,
            learned=self._learned,
            turns=self._turns,
            executor=self._executor,
        )
