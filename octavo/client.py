"""A client of Octavo's public service: plain Python in and out, one class for threads, one for asyncio.

with Client("127.0.0.1:50051") as client:
    for response in client.generate("The sky is", max_tokens=20):
        print(response.text, end="")
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.v1 import common_pb2, inference_pb2, inference_pb2_grpc

DEFAULT_ADDRESS = "127.0.0.1:50051"

# A prompt: text; a conversation of {"role": ..., "content": ...} messages; or token ids.
PromptLike = str | Iterable[Mapping[str, str]] | Iterable[int] | inference_pb2.Prompt

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
    """Calls Octavo from ordinary code. Threads may share one."""

    def __init__(self, address: str = DEFAULT_ADDRESS) -> None:
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.GenerationServiceStub(self._channel)

    def generate(
        self,
        prompt: PromptLike,
        *,
        model: str = "",
        timeout: float | None = None,
        request_id: str = "",
        **sampling: Any,
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Streams the answer. Closing the iterator ends the request on the server.

        Args:
            prompt: Text, messages or token ids.
            model: Name of the model; may be empty where one is served.
            timeout: Seconds the request may take, queueing included.
            request_id: Chosen by the server where empty.
            **sampling: Fields of ``SamplingParams``: ``max_tokens``, ``temperature``, ``n``, ``stop``...

        Raises:
            OctavoError: The request was refused or broke off.
            ValueError: No such sampling parameter.
        """
        request = generate_request(prompt, model, timeout, request_id, sampling)
        return self._stream(request, timeout)

    def _stream(
        self, request: inference_pb2.GenerateRequest, timeout: float | None
    ) -> Iterator[inference_pb2.GenerateResponse]:
        call = self._stub.Generate(request, timeout=_deadline(timeout))
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
        try:
            return list(self._stub.ListModels(inference_pb2.ListModelsRequest(), timeout=timeout).models)
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error

    def tokenize(self, prompt: PromptLike, *, model: str = "", timeout: float | None = None) -> list[int]:
        """Token ids of a prompt, as `generate` would see them.

        Raises:
            OctavoError: The call failed.
        """
        request = inference_pb2.TokenizeRequest(model=model, prompt=as_prompt(prompt))
        try:
            return list(self._stub.Tokenize(request, timeout=timeout).token_ids)
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
    """Calls Octavo from asyncio. Belongs to the event loop that it was made in."""

    def __init__(self, address: str = DEFAULT_ADDRESS) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.GenerationServiceStub(self._channel)

    def generate(
        self,
        prompt: PromptLike,
        *,
        model: str = "",
        timeout: float | None = None,
        request_id: str = "",
        **sampling: Any,
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Streams the answer, as `Client.generate` does. Cancelling the task ends the request on the server.

        Raises:
            OctavoError: The request was refused or broke off.
            ValueError: No such sampling parameter.
        """
        request = generate_request(prompt, model, timeout, request_id, sampling)
        return self._stream(request, timeout)

    async def _stream(
        self, request: inference_pb2.GenerateRequest, timeout: float | None
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        call = self._stub.Generate(request, timeout=_deadline(timeout))
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
        try:
            return list((await self._stub.ListModels(inference_pb2.ListModelsRequest(), timeout=timeout)).models)
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error

    async def tokenize(self, prompt: PromptLike, *, model: str = "", timeout: float | None = None) -> list[int]:
        """Token ids of a prompt, as `generate` would see them.

        Raises:
            OctavoError: The call failed.
        """
        request = inference_pb2.TokenizeRequest(model=model, prompt=as_prompt(prompt))
        try:
            return list((await self._stub.Tokenize(request, timeout=timeout)).token_ids)
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


def as_prompt(prompt: PromptLike) -> inference_pb2.Prompt:
    """Text, messages or token ids as a message.

    Raises:
        TypeError: It is none of them.
    """
    if isinstance(prompt, inference_pb2.Prompt):
        return prompt
    if isinstance(prompt, str):
        return inference_pb2.Prompt(text=prompt)
    items: list[Any] = list(prompt)
    if items and all(isinstance(item, Mapping) for item in items):
        messages = [inference_pb2.ChatMessage(**message) for message in items]
        return inference_pb2.Prompt(chat=inference_pb2.ChatPrompt(messages=messages))
    return inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=items))


def generate_request(
    prompt: PromptLike,
    model: str = "",
    timeout: float | None = None,
    request_id: str = "",
    sampling: Mapping[str, Any] | None = None,
) -> inference_pb2.GenerateRequest:
    """The message that `generate` sends; absent sampling parameters (None) keep the server's defaults."""
    chosen = {name: value for name, value in (sampling or {}).items() if value is not None}
    request = inference_pb2.GenerateRequest(
        model=model,
        prompt=as_prompt(prompt),
        sampling=common_pb2.SamplingParams(**chosen),
        request_id=request_id,
    )
    if timeout is not None:
        request.timeout.FromNanoseconds(round(timeout * 1e9))
    return request


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else timeout + _DEADLINE_MARGIN_SECONDS
