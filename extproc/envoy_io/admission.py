"""Admission: one message in (body and attributes), one answer out.

Nothing of ours stays open while the answer streams. Every path that has asked for a reservation and
does not answer with it ends in a release, handed to the settler without awaiting.
"""

import asyncio
import logging
import secrets
import time
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.durability import ExecutionState
from extproc.core.errors import RequestError, StoreUnavailableError
from extproc.core.executions import Executions, execution_of
from extproc.core.handles import Handle, Profile
from extproc.core.ids import new_reservation_id, reservation_id_of
from extproc.core.learned_factors import LearnedFactors
from extproc.core.outcomes import release
from extproc.core.policies import Descriptor
from extproc.core.ports import LimitSource, Telemetry
from extproc.core.price_list import FREE
from extproc.core.reservations import (
    Admitted,
    IdConflict,
    Knowledge,
    Outcome,
    Rejected,
    ReserveRequest,
    ServiceRefused,
    ServiceState,
    Source,
    Unpriced,
    Verdict,
)
from extproc.core.reserving import Attempt, Reserver
from extproc.core.settler import Settler
from extproc.core.subjects import subject_text
from extproc.envoy_io.admission_policy import AdmissionPolicy
from extproc.envoy_io.attributes import MALFORMED, Attributes
from extproc.envoy_io.deadlines import Deadlines
from extproc.envoy_io.decisions import log_admitted
from extproc.envoy_io.descriptor import describe
from extproc.envoy_io.idempotency import idempotency_digest, request_hash
from extproc.envoy_io.identity import identify
from extproc.envoy_io.refusals import Refusals
from extproc.envoy_io.replies import admitted_reply, unmetered_reply
from extproc.envoy_io.unknown_models import UnknownModels
from extproc.envoy_io.verdict_errors import error_of, service_error
from extproc.providers.input_correction import corrected_input
from extproc.providers.registry import read_request
from extproc.providers.requests import ReadLimits, RequestFacts, Unmetered

log = logging.getLogger("tokenweir.admission")

# Tells the calls of one reservation id apart: this process' own word, and a number.
_OWNER = secrets.token_hex(6)
_numbers = count()
_REFUSED = (ServiceRefused, IdConflict, Unpriced)
_MAX_TEXT, _MAX_PATH_TEXT = 128, 100
_UNREADABLE = 415  # status of a body in an encoding that we do not decode


@dataclass(slots=True)
class _Asked:
    """What is known of a request beside its body, as far as it was read."""

    path: str
    request_id: str
    reservation_id: str
    profile: Profile = "inline"
    service_id: str = ""
    idempotency_key: str = ""  # a digest of the client's own key, empty without one


class UnexpectedMessageError(Exception):
    """Envoy's filter is not configured as our include does it."""


class Admission:
    """Decides requests. Holds no state of any of them after its answer."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        *,
        reserver: Reserver,
        limits: LimitSource,
        settler: Settler,
        telemetry: Telemetry,
        executor: Executor,
        learned: LearnedFactors | None = None,
        executions: Executions | None = None,
    ) -> None:
        self._policy = policy
        self._reserver = reserver
        self._limits = limits
        self._settler = settler
        self._telemetry = telemetry
        self._executor = executor
        self._learned = learned
        self._executions = executions
        self._deadlines = Deadlines(policy.timeout_seconds)
        self._unknown = UnknownModels(policy.known_models, telemetry)
        self._refusals = Refusals(telemetry, fails_open=policy.fails_open)
        limits_of = partial(
            ReadLimits,
            max_decoded_bytes=policy.max_body_bytes,
            strict_cap_tokens=policy.strict_cap_tokens,
        )
        unhidden = limits_of(usage_events="show" if policy.shows_usage_events else "leave")
        self._read_limits = {"inline": limits_of(), "observe": unhidden, "native": unhidden}

    async def decide(
        self, message: pb.ProcessingRequest, profile: Profile = "inline"
    ) -> pb.ProcessingResponse:
        """The answer to the one message of an Envoy that has answers metered by ``profile``.

        Who is cancelled here gives back what was taken. Once the answer is handed to gRPC nobody
        can tell whether Envoy got it; where it did not, its access log entry has no handle, and the
        ending releases the reservation by the id that both can compute.

        Raises UnexpectedMessageError for a message that our include does not ask for.
        """
        if message is MALFORMED:
            return self._refusals.unreadable()
        kind = message.WhichOneof("request")
        if kind != "request_body":
            raise UnexpectedMessageError(
                f"admission got {kind}: the filter must skip headers and trailers and buffer the "
                "body, as our include says"
            )
        return await self._answer(message, profile)

    async def _answer(
        self, message: pb.ProcessingRequest, profile: Profile
    ) -> pb.ProcessingResponse:
        started = time.perf_counter()
        attributes = Attributes(message)
        # A query may hold a credential (Gemini's ?key=): cut off before anything is logged.
        path = (attributes.text("request.path") or "").partition("?")[0]
        request_id = (attributes.text("request.id") or "")[:_MAX_TEXT]
        asked = _Asked(path, request_id, reservation_id_from(attributes, request_id), profile)
        try:
            service_id = asked.service_id = identify(
                self._policy.identity,
                header=attributes.header,
                metadata=message.metadata_context,
            )
            asked.idempotency_key = idempotency_digest(
                self._policy.idempotency_header, header=attributes.header
            )
            with self._deadlines.one():
                facts, body_hash = await self._read(asked, attributes, message.request_body.body)
                descriptor = describe(
                    self._policy.scopes,
                    root=service_id,
                    model="" if isinstance(facts, Unmetered) else facts.model,
                    wire_format=facts.wire_format,
                    header=attributes.header,
                    metadata=message.metadata_context,
                )
                if isinstance(facts, Unmetered):
                    return await self._unmetered(asked, facts, descriptor)
                handle, verdict = await self._reserve(asked, facts, body_hash, descriptor)
                if isinstance(verdict, Admitted):
                    # The verdict's: a repeated call got the first one's decision.
                    handle.reservation_id = verdict.reservation_id
                    handle.reserved_tokens = verdict.reserved_tokens
                    handle.slice_id = verdict.slice_id
                    if self._is_strict(service_id):
                        await self._make_durable(handle, verdict, body_hash, descriptor)
        except TimeoutError:
            # Not Redis' word that it is away, so no reason to fail open: a body made to be slow to
            # read would get through.
            late = StoreUnavailableError("admission", "no decision in time", transient=True)
            return self._refusals.unavailable(
                late, path=path, service_id=asked.service_id, request_id=asked.request_id
            )
        except RequestError as error:
            return self._refusals.bad_request(
                error, path=path, service_id=asked.service_id, request_id=asked.request_id
            )
        except StoreUnavailableError as error:
            return self._refusals.unavailable(
                error,
                path=path,
                service_id=asked.service_id,
                request_id=asked.request_id,
                # What SQL must know first is never let through unseen.
                may_open=not self._is_strict(asked.service_id),
            )
        if isinstance(verdict, _REFUSED):
            return self._refusals.bad_request(
                error_of(verdict, handle.model, self._policy.idempotency_header),
                path=path,
                service_id=service_id,
                request_id=asked.request_id,
            )
        seconds = time.perf_counter() - started
        if isinstance(verdict, Rejected):
            self._telemetry.rejected(verdict, seconds=seconds)
            return self._refusals.over_limit(
                verdict, descriptor, path=path, request_id=asked.request_id, model=handle.model
            )
        try:
            self._telemetry.admitted(verdict, seconds=seconds)
            log_admitted(verdict, handle)
            reply = admitted_reply(verdict, handle.to_fields(), new_body=facts.new_body)
        except BaseException:
            self._give_back(handle)
            raise
        if self._executions is not None:
            self._executions.reached(handle.root, handle.reservation_id, ExecutionState.DISPATCHING)
        return reply

    def _is_strict(self, service_id: str) -> bool:
        return self._executions is not None and self._executions.selects(service_id)

    async def _make_durable(
        self, handle: Handle, verdict: Admitted, body_hash: str, descriptor: Descriptor
    ) -> None:
        """Returns when SQL holds the execution. Else everything is given back, the request count
        too: raises StoreUnavailableError."""
        assert self._executions is not None
        row = execution_of(
            handle,
            verdict,
            request_hash=body_hash,
            subject=subject_text(descriptor, is_priced=True),
            deadline_ms=self._policy.deadline_ms,
        )
        try:
            await self._executions.commit(row)
        except StoreUnavailableError:
            self._give_back(handle, undo=True)
            raise
        except BaseException:
            self._give_back(handle)
            raise

    async def _read(
        self, asked: _Asked, attributes: Attributes, body: bytes
    ) -> tuple[RequestFacts | Unmetered, str]:
        """What the request asks, and a hash of it."""

        content_encoding = attributes.header("content-encoding")
        read = partial(
            _facts_and_hash,
            asked.path,
            body,
            content_type=attributes.header("content-type"),
            content_encoding=content_encoding,
            limits=self._read_limits[asked.profile],
            host=attributes.text("request.host") or "",
        )
        try:
            # A compressed body is small only before it is read.
            if not content_encoding and len(body) <= self._policy.count_inline_max_bytes:
                return read()
            return await asyncio.get_running_loop().run_in_executor(self._executor, read)
        except RequestError as error:
            if error.status == _UNREADABLE and self._policy.allows_unmetered:
                # Our limit, not the client's mistake.
                return Unmetered("content_encoding"), ""
            raise

    async def _reserve(
        self, asked: _Asked, facts: RequestFacts, body_hash: str, descriptor: Descriptor
    ) -> tuple[Handle, Verdict]:
        """Ask for the reservation; if that is interrupted, give back what may have been taken."""
        input_tokens, permille = corrected_input(
            self._learned, facts, never_less=self._policy.strict_cap_tokens is not None
        )
        handle = Handle(
            reservation_id=asked.reservation_id,
            root=asked.service_id,
            wire_format=facts.wire_format,
            model=facts.model[:_MAX_TEXT].encode("utf-8", "replace").decode(),
            input_tokens=input_tokens,
            reserved_tokens=0,
            encoding=facts.encoding,
            hides_usage=facts.hides_usage,
            factor_percent=facts.factor_percent,
            learned_permille=permille,
            request_id=asked.request_id,
            profile=asked.profile,
        )
        default_output = self._policy.default_output_tokens
        if facts.reserves_cap and facts.output_cap_tokens is not None:
            default_output = facts.output_cap_tokens
        known_price = self._policy.prices.of(facts.model)
        if known_price is None:
            self._unknown.check(
                facts.model, service_id=asked.service_id, request_id=asked.request_id
            )
        price = known_price or FREE
        request = ReserveRequest(
            reservation_id=handle.reservation_id,
            root=handle.root,
            input_tokens=input_tokens,
            output_cap_tokens=facts.output_cap_tokens,
            default_output_tokens=default_output,
            skips_history=facts.reserves_cap,
            deadline_ms=self._policy.deadline_ms,
            wire_format=handle.wire_format,
            model=handle.model,
            request_id=handle.request_id,
            owner=f"{_OWNER}{next(_numbers)}",
            request_hash=body_hash,
            idempotency_key=asked.idempotency_key,
            idempotency_ttl_ms=self._policy.idempotency_ttl_ms,
            input_price=price.input_micros,
            output_price=price.output_micros,
            is_priced=known_price is not None,
            subject=subject_text(descriptor, is_priced=known_price is not None),
        )
        attempt = Attempt(request, descriptor)
        try:
            verdict = await self._reserver.reserve(attempt)
        except StoreUnavailableError as error:
            # With several roots the first ones have admitted, whatever became of the last; a call
            # whose reply was lost may still arrive.
            if error.maybe_applied or attempt.is_doubtful or len(attempt.roots) > 1:
                self._give_back(handle, undo=attempt.is_refused)
            raise
        except BaseException:
            # The client left, Envoy gave up, the time is over, or a fault of ours. The call may
            # still be on its way; a release that overtakes it leaves a mark, and the late reserve
            # takes nothing.
            self._give_back(handle, undo=attempt.is_refused)
            raise
        return handle, verdict

    def _give_back(self, handle: Handle, *, undo: bool = False) -> None:
        # A guess: a write that was interrupted may have reached Envoy all the same, and then
        # metering knows better.
        end = release(handle, Outcome.NOT_FORWARDED, Source.ADMISSION, knowledge=Knowledge.GUESSED)
        self._settler.submit(replace(end, undo=undo))

    async def _unmetered(
        self, asked: _Asked, facts: Unmetered, descriptor: Descriptor
    ) -> pb.ProcessingResponse:
        """What cannot be counted follows the setting, what is free passes. Even then the caller
        must be a known and enabled service that nothing blocks. Raises RequestError or
        StoreUnavailableError."""
        allowed = facts.is_free or (
            self._policy.allows_unmetered and not self._is_strict(asked.service_id)
        )
        self._telemetry.unmetered(facts.reason, allowed=allowed)
        if not allowed:
            raise RequestError(
                403,
                "unmetered_request",
                f"{asked.path[:_MAX_PATH_TEXT]} is not a path whose tokens this gateway can count, "
                "and it forwards nothing else.",
            )
        found = await self._limits.load(asked.service_id)
        if not found.is_known:
            raise service_error(ServiceRefused(ServiceState.UNKNOWN))
        if found.limit is not None and not found.limit.enabled:
            raise service_error(ServiceRefused(ServiceState.DISABLED))
        if found.policies is not None:
            block = self._reserver.block_on(found.policies, descriptor)
            if block is not None:
                raise RequestError(403, "blocked", f"This {block.scope} is blocked here.")
        log.info(
            "unmetered",
            extra={
                "reason": facts.reason,
                "service_id": asked.service_id,
                "path": asked.path[:_MAX_PATH_TEXT],
                "request_id": asked.request_id,
            },
        )
        return unmetered_reply(facts.reason)


def _facts_and_hash(path: str, body: bytes, **about: Any) -> tuple[RequestFacts | Unmetered, str]:
    return read_request(path, body, **about), request_hash(path, body)


def reservation_id_from(attributes: Attributes, request_id: str) -> str:
    """The id that the ending can compute too; a random one where the include is an older one."""
    start_us, client = attributes.time_us("request.time"), attributes.text("source.address")
    if start_us is None or client is None or not request_id:
        return new_reservation_id()
    return reservation_id_of(request_id=request_id, start_us=start_us, client=client)
