"""A client of Octavo's public service: plain Python in and out, one class for threads, one for asyncio.

with Client("127.0.0.1:50051") as client:
    for response in client.generate("The sky is", max_tokens=20):
        print(response.text, end="")

    for beam in client.generate("The sky is", beam_width=4, n=2):
        print(beam.score, beam.text)

    pin = client.pin(manual, ttl=3600, cache_scope="app")
    client.generate([Segment(manual, "app"), Segment(question, "request")])
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.messages import PromptLike, ScopeLike, Segment, as_prompt, generate_request, pin_request
from octavo.v1 import inference_pb2, inference_pb2_grpc

__all__ = [
    "AsyncClient",
    "Client",
    "OctavoError",
    "PromptLike",
    "ScopeLike",
    "Segment",
    "as_prompt",
    "generate_request",
]

DEFAULT_ADDRESS = "127.0.0.1:50051"

# How long one attempt to connect may take. gRPC's own limit is 20 s.
_CHANNEL_OPTIONS = [("grpc.min_reconnect_backoff_ms", 5000)]

# The server ends a request at its `timeout` and says so. The deadline of the call, which holds where no server answers,
# comes a little later, so that the server's word arrives first.
_DEADLINE_MARGIN_SECONDS = 1.0


class OctavoError(Exception):
    """A call that failed.

    Attributes:
        status: The gRPC status code.
        message: What the server said, or gRPC where there was no server.
        field: The field of the request that is at fault, or "".
        reason: Upper-case constant for programs (``google.rpc.ErrorInfo``), or "".
        retry_after: Seconds after which another try is worth it, or None.
        from_server: Whether a server answered. False: it was not reached, or the connection broke.
    """

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        *,
        field: str = "",
        reason: str = "",
        retry_after: float | None = None,
        from_server: bool = True,
    ) -> None:
        where = f"{field}: " if field and not message.startswith(f"{field}:") else ""
        super().__init__(f"{status.name}: {where}{message}")
        self.status = status
        self.message = message
        self.field = field
        self.reason = reason
        self.retry_after = retry_after
        self.from_server = from_server

    @classmethod
    def from_rpc(cls, error: grpc.RpcError) -> "OctavoError":
        """Reads a failed call of either kind, and the ``google.rpc.Status`` that came with it."""
        call: Any = error
        status, message = call.code(), call.details() or ""
        rich = rpc_status.from_call(call)
        if rich is None:
            # A server that is there but cannot serve says so in a google.rpc.Status. gRPC's own UNAVAILABLE has none.
            return cls(status, message, from_server=status is not grpc.StatusCode.UNAVAILABLE)
        field = reason = ""
        retry_after = None
        for detail in rich.details:
            if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad_request = error_details_pb2.BadRequest()
                detail.Unpack(bad_request)
                field = next((violation.field for violation in bad_request.field_violations), "")
            elif detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                detail.Unpack(info)
                reason = info.reason
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        return cls(status, rich.message or message, field=field, reason=reason, retry_after=retry_after)


class Client:
    """Calls Octavo from ordinary code. Threads may share one.

    Args:
        address: Of the server.
        metadata: Sent with each call, for example what a proxy in front of the server asks for.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, metadata: Mapping[str, str] | None = None) -> None:
        self._metadata = tuple((metadata or {}).items())
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.GenerationServiceStub(self._channel)

    def generate(
        self,
        prompt: PromptLike,
        *,
        model: str = "",
        timeout: float | None = None,
        request_id: str = "",
        priority: int = 0,
        cache_scope: ScopeLike | None = None,
        report_progress: bool = False,
        response_interval: float | None = None,
        **sampling: Any,
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Streams the answer. Closing the iterator ends the request on the server.

        Args:
            prompt: Text, messages, token ids, or parts of these as a list with a `Segment` in it.
            model: Name of the model; may be empty where one is served.
            timeout: Seconds the request may take, queueing included.
            request_id: Chosen by the server where empty.
            priority: From -100 to 100; higher goes first where the server schedules by priority.
            cache_scope: Who may reuse the prompt's keys and values: "request", "app", "tenant" (which is what absent
                means) or "shared:NAME".
            report_progress: Also send how much of a long prompt has been computed: responses with ``progress`` alone.
            response_interval: Seconds of which a sequence's tokens are sent as one response, but for the first. Costs
                less than a response for each token, on both sides. None: as the server likes. Not with ``stop``.
            **sampling: Fields of ``SamplingParams``: ``max_tokens``, ``temperature``, ``n``, ``stop``, ``beam_width``
                and so on. ``early_stopping`` may be True, False or "never", as in transformers.

        Raises:
            OctavoError: The request was refused or broke off.
            ValueError: No such sampling parameter or scope.
        """
        request = generate_request(
            prompt,
            model,
            timeout,
            request_id,
            sampling,
            priority=priority,
            cache_scope=cache_scope,
            report_progress=report_progress,
            response_interval=response_interval,
        )
        return self._stream(request, timeout)

    def _stream(
        self, request: inference_pb2.GenerateRequest, timeout: float | None
    ) -> Iterator[inference_pb2.GenerateResponse]:
        call = self._stub.Generate(request, timeout=_deadline(timeout), metadata=self._metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error
        finally:
            call.cancel()

    def models(self, timeout: float | None = None) -> list[inference_pb2.Model]:
        """The models that are served, with their limits.

        Raises:
            OctavoError: The call failed.
        """
        return list(self._call(self._stub.ListModels, inference_pb2.ListModelsRequest(), timeout).models)

    def tokenize(self, prompt: PromptLike, *, model: str = "", timeout: float | None = None) -> list[int]:
        """Token ids of a prompt, as `generate` would see them.

        Raises:
            OctavoError: The call failed.
        """
        request = inference_pb2.TokenizeRequest(model=model, prompt=as_prompt(prompt))
        return list(self._call(self._stub.Tokenize, request, timeout).token_ids)

    def pin(
        self,
        prompt: PromptLike,
        ttl: float | timedelta,
        *,
        model: str = "",
        cache_scope: ScopeLike | None = None,
        timeout: float | None = None,
    ) -> inference_pb2.Pin:
        """Has a prompt's keys and values computed and kept, so that requests that begin with it start faster.

        Args:
            prompt: As of `generate`.
            ttl: Seconds that it stays, from 1 to 30 days.
            model: Name of the model; may be empty where one is served.
            cache_scope: As of `generate`; not "request".
            timeout: Seconds that computing it may take, queueing included.

        Raises:
            OctavoError: The request was refused or broke off.
            ValueError: No such scope.
        """
        request = pin_request(prompt, ttl, model, cache_scope, timeout)
        pin: inference_pb2.Pin = self._call(self._stub.PinPrefix, request, _deadline(timeout)).pin
        return pin

    def unpin(self, pin: str | inference_pb2.Pin, timeout: float | None = None) -> None:
        """Lets go of a pin, given by its id or as `pin` or `pins` returned it.

        Raises:
            OctavoError: The call failed; NOT_FOUND: there is no such pin.
        """
        pin_id = pin if isinstance(pin, str) else pin.pin_id
        self._call(self._stub.UnpinPrefix, inference_pb2.UnpinPrefixRequest(pin_id=pin_id), timeout)

    def pins(self, timeout: float | None = None) -> list[inference_pb2.Pin]:
        """What is pinned.

        Raises:
            OctavoError: The call failed.
        """
        return list(self._call(self._stub.ListPins, inference_pb2.ListPinsRequest(), timeout).pins)

    def _call(self, method: Any, request: Message, timeout: float | None) -> Any:
        try:
            return method(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error

    def close(self) -> None:
        """Ends every call and the connection."""
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """Calls Octavo from asyncio. Belongs to the event loop that it was made in.

    Args:
        address: Of the server.
        metadata: Sent with each call.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, metadata: Mapping[str, str] | None = None) -> None:
        self._metadata = tuple((metadata or {}).items())
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.GenerationServiceStub(self._channel)

    def generate(
        self,
        prompt: PromptLike,
        *,
        model: str = "",
        timeout: float | None = None,
        request_id: str = "",
        priority: int = 0,
        cache_scope: ScopeLike | None = None,
        report_progress: bool = False,
        response_interval: float | None = None,
        **sampling: Any,
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Streams the answer, as `Client.generate` does. Cancelling the task ends the request on the server.

        Raises:
            OctavoError: The request was refused or broke off.
            ValueError: No such sampling parameter or scope.
        """
        request = generate_request(
            prompt,
            model,
            timeout,
            request_id,
            sampling,
            priority=priority,
            cache_scope=cache_scope,
            report_progress=report_progress,
            response_interval=response_interval,
        )
        return self._stream(request, timeout)

    async def _stream(
        self, request: inference_pb2.GenerateRequest, timeout: float | None
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        call = self._stub.Generate(request, timeout=_deadline(timeout), metadata=self._metadata)
        try:
            async for response in call:
                yield response
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error
        finally:
            call.cancel()

    async def models(self, timeout: float | None = None) -> list[inference_pb2.Model]:
        """The models that are served, with their limits.

        Raises:
            OctavoError: The call failed.
        """
        return list((await self._call(self._stub.ListModels, inference_pb2.ListModelsRequest(), timeout)).models)

    async def tokenize(self, prompt: PromptLike, *, model: str = "", timeout: float | None = None) -> list[int]:
        """Token ids of a prompt, as `generate` would see them.

        Raises:
            OctavoError: The call failed.
        """
        request = inference_pb2.TokenizeRequest(model=model, prompt=as_prompt(prompt))
        return list((await self._call(self._stub.Tokenize, request, timeout)).token_ids)

    async def pin(
        self,
        prompt: PromptLike,
        ttl: float | timedelta,
        *,
        model: str = "",
        cache_scope: ScopeLike | None = None,
        timeout: float | None = None,
    ) -> inference_pb2.Pin:
        """Has a prompt computed and kept, as `Client.pin` does. Cancelling the task gives it up.

        Raises:
            OctavoError: The request was refused or broke off.
            ValueError: No such scope.
        """
        request = pin_request(prompt, ttl, model, cache_scope, timeout)
        pin: inference_pb2.Pin = (await self._call(self._stub.PinPrefix, request, _deadline(timeout))).pin
        return pin

    async def unpin(self, pin: str | inference_pb2.Pin, timeout: float | None = None) -> None:
        """Lets go of a pin, given by its id or as `pin` or `pins` returned it.

        Raises:
            OctavoError: The call failed; NOT_FOUND: there is no such pin.
        """
        pin_id = pin if isinstance(pin, str) else pin.pin_id
        await self._call(self._stub.UnpinPrefix, inference_pb2.UnpinPrefixRequest(pin_id=pin_id), timeout)

    async def pins(self, timeout: float | None = None) -> list[inference_pb2.Pin]:
        """What is pinned.

        Raises:
            OctavoError: The call failed.
        """
        return list((await self._call(self._stub.ListPins, inference_pb2.ListPinsRequest(), timeout)).pins)

    async def _call(self, method: Any, request: Message, timeout: float | None) -> Any:
        try:
            return await method(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error

    async def close(self) -> None:
        """Ends every call and the connection."""
        await self._channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _deadline(timeout: float | None) -> float | None:
    """Of the call. A time limit that the server refuses gets the margin too: the server says what is wrong with it."""
    return None if timeout is None else max(timeout, 0.0) + _DEADLINE_MARGIN_SECONDS
