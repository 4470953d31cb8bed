"""What clients may ask for, whichever protocol they speak."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TypeVar

from gateway.errors import RequestError
from gateway.gateway import Gateway
from gateway.prepared import ModelLimits, PreparedRequest
from gateway.request import GenerationRequest, PinRequest, Prompt
from gateway.scope import Identity
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.admission import Admission
from services.gateway.answers import Answers, within_deadline
from services.gateway.backends import Backends
from services.gateway.call_span import CallSpan
from services.gateway.codec import core_error
from services.gateway.guide_checker import GuideChecker
from services.gateway.identity import Callers
from services.gateway.mailbox import Mailbox
from services.gateway.metrics.calls import CallMeter, CallMetrics
from services.gateway.pinning import Pinning
from services.gateway.running_call import Recipient
from services.gateway.span_attributes import usage_attributes
from services.telemetry.tracing import Tracing, sampled_trace_id

LONG_REQUEST_BYTES = 16 * 1024
"""Requests from this size on are tokenized on a thread, so that they don't hold up others' streams."""

Metadata = Sequence[tuple[str, str | bytes]]
"""What a call brings beside its request, names in lower case: gRPC metadata, or HTTP headers."""

R = TypeVar("R")


class Calls:
    """The public calls. The servicer of each protocol translates to them and back.

    Where a request is decoded by a callable, that may refuse it as the core does (`gateway.errors.RequestError`).
    Sizes are those of the requests, in bytes. Every method raises RpcError.

    Args:
        answers: the calls that stream.
        callers: tells who is calling.
        admission: lets requests in, and counts what they use.
        metrics: are told of calls that compute something.
        guides: tells which guides can be followed.
    """

    def __init__(
        self,
        gateway: Gateway,
        backends: Backends,
        answers: Answers,
        callers: Callers,
        admission: Admission,
        tracing: Tracing,
        metrics: CallMetrics,
        guides: GuideChecker,
    ) -> None:
        self._gateway = gateway
        self._backends = backends
        self._answers = answers
        self._callers = callers
        self._admission = admission
        self._tracing = tracing
        self._metrics = metrics
        self._guides = guides
        self._protocol = "grpc"
        self._pinning = Pinning(backends)

    def speaking(self, protocol: str) -> Calls:
        """The same for the servicer of a protocol: metrics tell calls apart by it. At first it is ``grpc``."""
        calls = copy.copy(self)
        calls._protocol = protocol
        return calls

    @property
    def gateway(self) -> Gateway:
        """The core."""
        return self._gateway

    @property
    def ready(self) -> bool:
        """The way to an executor is open."""
        return self._backends.ready

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """Who is calling."""
        return self._callers.identify(metadata)

    # Generating

    async def generate(
        self,
        decode: Callable[[], GenerationRequest],
        size: int,
        metadata: Metadata,
        recipient: Recipient,
        on_prepared: Callable[[PreparedRequest], None] = lambda prepared: None,
    ) -> None:
        """Sends the recipient `GenerateResponse` messages, as bytes, until the one with the usage.

        Before the first one, `on_prepared` is told what the request came to.
        """
        with self._metrics.call(self._protocol, "generate") as meter, self._span("chat", metadata) as span:
            meter.trace_id = sampled_trace_id(span.context or _trace_context(metadata))
            with self._admission.visit(self._identify(metadata, meter)) as visit:
                prepared = await self._in_core(
                    size, lambda limits: self._gateway.prepare(decode(), limits, visit.identity)
                )
                await self._check_guide(prepared)
                on_prepared(prepared)
                await self._answers.begin(within_deadline(prepared, recipient), span, recipient, visit, meter)

    async def responses(
        self, decode: Callable[[], GenerationRequest], size: int, metadata: Metadata
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """The same for a caller in this process. Whoever closes the iterator ends the request."""
        mailbox = Mailbox()
        generating = asyncio.ensure_future(self.generate(decode, size, metadata, mailbox))
        generating.add_done_callback(lambda _: mailbox.close())
        try:
            async for data in mailbox:
                yield inference_pb2.GenerateResponse.FromString(data)
            generating.result()
        finally:
            generating.cancel()
            await asyncio.wait([generating])

    async def resume(
        self, decode: Callable[[], inference_pb2.ResumeRequest], metadata: Metadata, recipient: Recipient
    ) -> None:
        """Goes on with a request whose stream broke."""
        with self._metrics.call(self._protocol, "resume") as meter, self._span("chat", metadata) as span:
            meter.trace_id = sampled_trace_id(span.context or _trace_context(metadata))
            with self._admission.continued(self._identify(metadata, meter)) as visit:
                message = decode()
                await self._answers.resume(message.request_id, message.from_token, span, recipient, visit, meter)

    # Pins

    async def pin(
        self, decode: Callable[[], PinRequest], size: int, metadata: Metadata, recipient: Recipient
    ) -> inference_pb2.PinPrefixResponse:
        """Keeps a prefix resident. The recipient's deadline counts; it is sent nothing."""
        with (
            self._metrics.call(self._protocol, "pin") as meter,
            self._span("pin", metadata) as span,
            self._admission.visit(self._identify(metadata, meter)) as visit,
        ):
            prepared = await self._in_core(
                size, lambda limits: self._gateway.prepare_pin(decode(), limits, visit.identity)
            )
            await visit.begin(prepared)
            meter.begun(prepared)
            response = await self._pinning.pin(within_deadline(prepared, recipient), span.context)
            visit.count(response.usage)
            span.end(usage_attributes(response.usage))
            return response

    async def unpin(self, tenant: str, pin_id: str) -> None:
        """Lets go of a pin."""
        await self._pinning.unpin(tenant, pin_id)

    async def pins(self, tenant: str) -> list[inference_pb2.Pin]:
        """A tenant's pins."""
        return await self._pinning.pins(tenant)

    # Questions about the model

    async def tokenize(self, decode: Callable[[], Prompt | None], size: int, model: str = "") -> list[int]:
        """A prompt's token ids."""
        return await self._in_core(size, lambda limits: self._gateway.tokenize(decode(), limits, model=model))

    async def detokenize(self, token_ids: Sequence[int], size: int, model: str = "") -> str:
        """The text of token ids."""
        return await self._in_core(size, lambda limits: self._gateway.detokenize(token_ids, limits, model=model))

    @property
    def model(self) -> inference_pb2.Model:
        """The model that is served, under the name that clients know.

        Raises:
            RpcError: UNAVAILABLE: there is no executor.
        """
        model = inference_pb2.Model()
        model.CopyFrom(self._backends.model)
        model.name = self._gateway.model_name
        return model

    async def _in_core(self, size: int, call: Callable[[ModelLimits], R]) -> R:
        """Runs a call of the core, and translates what it refuses."""
        model = self._backends.model
        limits = ModelLimits(model.max_model_len, model.vocab_size, model.block_size)
        try:
            if size < LONG_REQUEST_BYTES:
                return call(limits)
            return await asyncio.to_thread(call, limits)
        except RequestError as error:
            raise core_error(error) from error

    def _identify(self, metadata: Metadata, meter: CallMeter) -> Identity:
        identity = self.identify(metadata)
        meter.identified(identity.tenant)
        return identity

    async def _check_guide(self, request: PreparedRequest) -> None:
        try:
            await self._guides.check(request.sampling.guide)
        except RequestError as error:
            raise core_error(error) from error

    def _span(self, operation: str, metadata: Metadata) -> CallSpan:
        model = self._gateway.model_name
        attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
        return CallSpan(self._tracing.start_request(f"{operation} {model}", _trace_context(metadata), attributes))


def _trace_context(metadata: Metadata) -> common_pb2.TraceContext | None:
    """What the client says about the trace that the call belongs to."""
    texts = {key: value for key, value in metadata if isinstance(value, str)}
    if "traceparent" not in texts:
        return None
    return common_pb2.TraceContext(traceparent=texts["traceparent"], tracestate=texts.get("tracestate", ""))
