"""The client for ordinary code."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import Message

from octavo.channel import FilePath, call_metadata, open_channel
from octavo.client.errors import OctavoError
from octavo.client.gateways import DEFAULT_ADDRESS, Gateway, Gateways
from octavo.client.generation import Generation, as_generated, start
from octavo.client.retries import DEFAULT_RETRIES, Retries, RetryPolicy, is_about_one_server
from octavo.client.unary import UnaryCall
from octavo.messages import PromptLike, ScopeLike, as_duration, as_prompt, generate_request, pin_request
from octavo.v1 import inference_pb2, monitoring_pb2


class Client:
    """Calls Octavo from ordinary code. Threads may share one.

    Args:
        address: Of the server, or of several in order of preference: calls go to one until it fails, then to the next.
        metadata: Sent with each call, for example what a proxy in front of the server asks for.
        api_key: Who is calling.
        tls: Over TLS.
        tls_ca: PEM file with the authorities to trust instead of those that gRPC knows; implies `tls`.
        retry: How long to try again where servers are away or full. None: every failure is told at once.
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
        self._gateways = Gateways(address, lambda each: open_channel(each, tls=tls, tls_ca=tls_ca))
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
    ) -> Iterator[inference_pb2.GenerateResponse]:
        """Streams the answer. Closing the iterator ends the request on the server.

        A stream that breaks goes on where it was, on the same server or another, without a gap or a repeat: the caller
        sees a pause. For that, each request gets an id and, where it samples, a seed, if the caller gives it none.

        Args:
            prompt: Text, messages, token ids, or parts of these as a list with a `Segment` in it.
            model: Name of the model; may be empty where one is served.
            timeout: Seconds the request may take, queueing and all tries included.
            request_id: Chosen at random where empty.
            priority: From -100 to 100; higher goes first where the server schedules by priority.
            cache_scope: Who may reuse the prompt's keys and values: "request", "app", "tenant" (which is what absent
                means) or "shared:NAME".
            report_progress: Also send how much of a long prompt has been computed: responses with ``progress`` alone.
            response_interval: Seconds of which a sequence's tokens are sent as one response, but for the first. Costs
                less than a response for each token, on both sides. None: as the server likes. Not with ``stop``.
            **sampling: Fields of ``SamplingParams``: ``max_tokens``, ``temperature``, ``n``, ``stop``, ``beam_width``
                and so on. ``early_stopping`` may be True, False or "never", as in transformers. What the answer must
                look like is said by one of ``json_schema`` (JSON, a mapping, or a pydantic model), ``regex``,
                ``grammar`` and ``choice`` (several texts).

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
        generation = Generation(request, self._retries(timeout))
        while True:
            gateway = self._gateways.current
            message, deadline = generation.next_call()
            call = start(gateway.stub, message, deadline, self._metadata)
            try:
                for response in call:
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
            time.sleep(delay)

    def models(self, timeout: float | None = None) -> list[inference_pb2.Model]:
        """The models that are served, with their limits.

        Raises:
            OctavoError: The call failed.
        """
        call = UnaryCall(self._retries(timeout))
        response = self._call("ListModels", inference_pb2.ListModelsRequest(), call)
        return list(response.models)

    def tokenize(self, prompt: PromptLike, *, model: str = "", timeout: float | None = None) -> list[int]:
        """Token ids of a prompt, as `generate` would see them.

        Raises:
            OctavoError: The call failed.
        """
        request = inference_pb2.TokenizeRequest(model=model, prompt=as_prompt(prompt))
        response = self._call("Tokenize", request, UnaryCall(self._retries(timeout)))
        return list(response.token_ids)

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
        retries = self._retries(timeout)
        if self._policy is not None:
            # Finds a server that answers: this call is not sent again where nobody knows whether it was done.
            self._call("ListModels", inference_pb2.ListModelsRequest(), UnaryCall(retries, server_knows_timeout=True))
        call = UnaryCall(retries, repeatable=False, server_knows_timeout=True)
        pin: inference_pb2.Pin = self._call("PinPrefix", request, call).pin
        return pin

    def unpin(self, pin: str | inference_pb2.Pin, timeout: float | None = None) -> None:
        """Lets go of a pin, given by its id or as `pin` or `pins` returned it.

        Raises:
            OctavoError: The call failed; NOT_FOUND: there is no such pin.
        """
        pin_id = pin if isinstance(pin, str) else pin.pin_id
        call = UnaryCall(self._retries(timeout), done_before=grpc.StatusCode.NOT_FOUND)
        self._call("UnpinPrefix", inference_pb2.UnpinPrefixRequest(pin_id=pin_id), call)

    def pins(self, timeout: float | None = None) -> list[inference_pb2.Pin]:
        """What is pinned.

        Raises:
            OctavoError: The call failed.
        """
        response = self._call("ListPins", inference_pb2.ListPinsRequest(), UnaryCall(self._retries(timeout)))
        return list(response.pins)

    def watch_status(self, interval: float | None = None) -> Iterator[monitoring_pb2.WatchStatusResponse]:
        """How the stack is: at once, with the last minutes as history, and then at every interval, without end.

        A stream that breaks begins anew where a server is back, with a history again. Closing the iterator ends it.

        Args:
            interval: Seconds, from 0.1 to 3600. None: 1 s.

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
                for response in call:
                    retries.responded()
                    yield response
                return
            except grpc.RpcError as failure:
                delay = self._after(failure, gateway, tries.delay_after)
            finally:
                call.cancel()
            time.sleep(delay)

    def requests(
        self, num_ended: int = 0, *, include_blocks: bool = False, timeout: float | None = None
    ) -> list[monitoring_pb2.RequestView]:
        """Requests that wait and run, and the last ones that have ended, in the order in which they arrived.

        Args:
            num_ended: Most of those that have ended; from 0 to 1000.
            include_blocks: Also each sequence's blocks.

        Raises:
            OctavoError: The call failed.
        """
        request = monitoring_pb2.ListRequestsRequest(num_ended=num_ended, include_blocks=include_blocks)
        response = self._call("ListRequests", request, UnaryCall(self._retries(timeout)))
        return list(response.requests)

    def explain(self, request_id: str, timeout: float | None = None) -> monitoring_pb2.Timeline:
        """A request's life, with each scheduling decision and its reason.

        Raises:
            OctavoError: The call failed; NOT_FOUND: there is no such request, or it ended too long ago.
        """
        request = monitoring_pb2.ExplainRequestRequest(request_id=request_id)
        response = self._call("ExplainRequest", request, UnaryCall(self._retries(timeout)))
        timeline: monitoring_pb2.Timeline = response.timeline
        return timeline

    def prefix_tree(
        self, max_nodes: int | None = None, timeout: float | None = None
    ) -> monitoring_pb2.GetPrefixTreeResponse:
        """What the prefix caches hold, as a tree, and how often it was found.

        Args:
            max_nodes: From 1 to 10000. None: 500.

        Raises:
            OctavoError: The call failed.
        """
        request = monitoring_pb2.GetPrefixTreeRequest(max_nodes=max_nodes)
        tree: monitoring_pb2.GetPrefixTreeResponse = self._call(
            "GetPrefixTree", request, UnaryCall(self._retries(timeout))
        )
        return tree

    def _call(self, method: str, request: Message, call: UnaryCall) -> Any:
        while True:
            gateway = self._gateways.current
            deadline = call.next_deadline()
            try:
                return gateway.method(method)(request, timeout=deadline, metadata=self._metadata)
            except grpc.RpcError as failure:
                if call.is_done(OctavoError.from_rpc(failure)):
                    return None
                delay = self._after(failure, gateway, call.delay_after)
            time.sleep(delay)

    def _retries(self, timeout: float | None) -> Retries:
        return Retries(self._policy, timeout, len(self._gateways), time.monotonic, random.random)

    def _after(
        self, failure: grpc.RpcError, gateway: Gateway[grpc.Channel], delay_after: Callable[[OctavoError], float]
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

    def close(self) -> None:
        """Ends every call and the connections."""
        self._closed = True
        for channel in self._gateways.channels:
            channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
