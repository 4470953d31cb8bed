"""The client for asyncio."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from octavo.channel import FilePath, call_metadata, open_aio_channel
from octavo.client.errors import OctavoError
from octavo.client.gateways import DEFAULT_ADDRESS, Gateway, Gateways
from octavo.client.generation import Generation, as_generated, start
from octavo.client.retries import DEFAULT_RETRIES, Retries, RetryPolicy, is_about_one_server
from octavo.client.unary import UnaryCall
from octavo.messages import PromptLike, ScopeLike, as_duration, as_prompt, generate_request, pin_request
from octavo.v1 import inference_pb2, monitoring_pb2


class AsyncClient:
    """Calls Octavo from asyncio. Belongs to the event loop that it was made in.

    Args:
        address: As of `Client`.
        metadata: As of `Client`.
        api_key: As of `Client`.
        tls: As of `Client`.
        tls_ca: As of `Client`.
        retry: As of `Client`.
    """

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        metadata: Mapping[str, str] | None = None,
        api_key: str | None = None,
        tls: bool = False,
        tls_ca: FilePath | None = None,
        retry: RetryPolicy | None = DEFAULT_RETRIES,
    ) -> None:
        self._metadata = call_metadata(metadata, api_key)
        self._gateways = Gateways(address, lambda each: open_aio_channel(each, tls=tls, tls_ca=tls_ca))
        self._policy = retry
        self._closed = False

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
        generation = Generation(request, self._retries(timeout))
        while True:
            gateway = self._gateways.current
            message, deadline = generation.next_call()
            call = start(gateway.stub, message, deadline, self._metadata)
            try:
                async for response in call:
                    part = generation.new_part(as_generated(response))
                    if part is not None:
                        yield part
                return
            except grpc.RpcError as failure:
                if generation.complete:
                    return
                delay = self._after(failure, gateway, generation.delay_after)
            finally:
                call.cancel()
            await asyncio.sleep(delay)

    async def models(self, timeout: float | None = None) -> list[inference_pb2.Model]:
        """The models that are served, with their limits.

        Raises:
            OctavoError: The call failed.
        """
        call = UnaryCall(self._retries(timeout))
        response = await self._call("ListModels", inference_pb2.ListModelsRequest(), call)
        return list(response.models)

    async def tokenize(self, prompt: PromptLike, *, model: str = "", timeout: float | None = None) -> list[int]:
        """Token ids of a prompt, as `generate` would see them.

        Raises:
            OctavoError: The call failed.
        """
        request = inference_pb2.TokenizeRequest(model=model, prompt=as_prompt(prompt))
        response = await self._call("Tokenize", request, UnaryCall(self._retries(timeout)))
        return list(response.token_ids)

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
        retries = self._retries(timeout)
        if self._policy is not None:
            # Finds a server that answers: this call is not sent again where nobody knows whether it was done.
            await self._call(
                "ListModels", inference_pb2.ListModelsRequest(), UnaryCall(retries, server_knows_timeout=True)
            )
        call = UnaryCall(retries, repeatable=False, server_knows_timeout=True)
        pin: inference_pb2.Pin = (await self._call("PinPrefix", request, call)).pin
        return pin

    async def unpin(self, pin: str | inference_pb2.Pin, timeout: float | None = None) -> None:
        """Lets go of a pin, given by its id or as `pin` or `pins` returned it.

        Raises:
            OctavoError: The call failed; NOT_FOUND: there is no such pin.
        """
        pin_id = pin if isinstance(pin, str) else pin.pin_id
        call = UnaryCall(self._retries(timeout), done_before=grpc.StatusCode.NOT_FOUND)
        await self._call("UnpinPrefix", inference_pb2.UnpinPrefixRequest(pin_id=pin_id), call)

    async def pins(self, timeout: float | None = None) -> list[inference_pb2.Pin]:
        """What is pinned.

        Raises:
            OctavoError: The call failed.
        """
        response = await self._call("ListPins", inference_pb2.ListPinsRequest(), UnaryCall(self._retries(timeout)))
        return list(response.pins)

    async def watch_status(self, interval: float | None = None) -> AsyncIterator[monitoring_pb2.WatchStatusResponse]:
        """How the stack is, as `Client.watch_status` tells it. Cancelling the task ends it.

        Raises:
            OctavoError: The call was refused, or broke off and no server came back.
        """
        request = monitoring_pb2.WatchStatusRequest(interval=as_duration(interval))
        retries = self._retries(None)
        tries = UnaryCall(retries)
        while True:
            gateway = self._gateways.current
            call = gateway.monitoring.WatchStatus(request, metadata=self._metadata)
            try:
                async for response in call:
                    retries.responded()
                    yield response
                return
            except grpc.RpcError as failure:
                delay = self._after(failure, gateway, tries.delay_after)
            finally:
                call.cancel()
            await asyncio.sleep(delay)

    async def requests(
        self, num_ended: int = 0, *, include_blocks: bool = False, timeout: float | None = None
    ) -> list[monitoring_pb2.RequestView]:
        """Requests that wait and run, and the last ones that have ended, as `Client.requests` lists them.

        Raises:
            OctavoError: The call failed.
        """
        request = monitoring_pb2.ListRequestsRequest(num_ended=num_ended, include_blocks=include_blocks)
        response = await self._call("ListRequests", request, UnaryCall(self._retries(timeout)))
        return list(response.requests)

    async def explain(self, request_id: str, timeout: float | None = None) -> monitoring_pb2.Timeline:
        """A request's life, with each scheduling decision and its reason.

        Raises:
            OctavoError: The call failed; NOT_FOUND: there is no such request, or it ended too long ago.
        """
        request = monitoring_pb2.ExplainRequestRequest(request_id=request_id)
        response = await self._call("ExplainRequest", request, UnaryCall(self._retries(timeout)))
        timeline: monitoring_pb2.Timeline = response.timeline
        return timeline

    async def prefix_tree(
        self, max_nodes: int | None = None, timeout: float | None = None
    ) -> monitoring_pb2.GetPrefixTreeResponse:
        """What the prefix caches hold, as `Client.prefix_tree` tells it.

        Raises:
            OctavoError: The call failed.
        """
        request = monitoring_pb2.GetPrefixTreeRequest(max_nodes=max_nodes)
        tree: monitoring_pb2.GetPrefixTreeResponse = await self._call(
            "GetPrefixTree", request, UnaryCall(self._retries(timeout))
        )
        return tree

    async def _call(self, method: str, request: Message, call: UnaryCall) -> Any:
        while True:
            gateway = self._gateways.current
            deadline = call.next_deadline()
            try:
                return await gateway.method(method)(request, timeout=deadline, metadata=self._metadata)
            except grpc.RpcError as failure:
                if call.is_done(OctavoError.from_rpc(failure)):
                    return None
                delay = self._after(failure, gateway, call.delay_after)
            await asyncio.sleep(delay)

    def _retries(self, timeout: float | None) -> Retries:
        return Retries(self._policy, timeout, len(self._gateways), time.monotonic, random.random)

    def _after(
        self, failure: grpc.RpcError, gateway: Gateway[grpc.aio.Channel], delay_after: Callable[[OctavoError], float]
    ) -> float:
        """Seconds to wait before the next try.

        Raises:
            OctavoError: There is none.
        """
        error = OctavoError.from_rpc(failure)
        if self._closed:
            raise error from failure
        if is_about_one_server(error):
            self._gateways.leave(gateway)
        return delay_after(error)

    async def close(self) -> None:
        """Ends every call and the connections."""
        self._closed = True
        for channel in self._gateways.channels:
            await channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
