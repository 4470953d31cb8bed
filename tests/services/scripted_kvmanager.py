"""A KV manager on a real stream that does what a test tells it to, and remembers what it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import grpc

from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2, kvmanager_pb2_grpc
from services.rpc.columns import pack_int32, pack_int64
from services.rpc.server import Context
from services.rpc.status import RpcError, abort

MODEL = inference_pb2.Model(name="inner", max_model_len=64, vocab_size=1000, block_size=4, num_blocks=32)

Script = Callable[[kvmanager_pb2.Submission], Iterable[kvmanager_pb2.AttachResponse]]


class ScriptedKVManager(kvmanager_pb2_grpc.KVManagerServiceServicer):
    """Answers each submission with the messages that `script` makes for it.

    Attributes:
        submissions, aborts, token_intervals: what gateways sent.
        pins: by tenant; a submission with a pin adds one when its end is sent.
        broken: what the unary calls end with, if anything.
        backend: what it says when a gateway attaches.
        refusal: where set, why it takes no gateway in, as code and reason.
        silent: it hangs.
        attached: how many gateways are there.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.submissions: list[kvmanager_pb2.Submission] = []
        self.aborts: list[kvmanager_pb2.Abort] = []
        self.token_intervals: list[int] = []
        self.pins: dict[str, dict[str, inference_pb2.Pin]] = {}
        self.unpinned: list[tuple[str, str]] = []
        self.broken: grpc.StatusCode | None = None
        self.backend = kvmanager_pb2.BackendState(ready=True, model=MODEL, epoch=1)
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.silent = False
        self._origins: dict[int, asyncio.Queue[kvmanager_pb2.AttachResponse | None]] = {}
        self._outboxes: set[asyncio.Queue[kvmanager_pb2.AttachResponse | None]] = set()

    @property
    def attached(self) -> int:
        return len(self._outboxes)

    def tell(self, *messages: kvmanager_pb2.AttachResponse) -> None:
        """Sends messages to the gateways that are attached."""
        for outbox in self._outboxes:
            for message in messages:
                outbox.put_nowait(message)

    def answer(self, submission: kvmanager_pb2.Submission, *messages: kvmanager_pb2.AttachResponse) -> None:
        """Sends messages to the gateway that a submission came from."""
        for message in messages:
            self._origins[id(submission)].put_nowait(message)

    def lose_gateways(self) -> None:
        """Ends the streams."""
        for outbox in self._outboxes:
            outbox.put_nowait(None)

    async def Attach(
        self, requests: AsyncIterator[kvmanager_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[kvmanager_pb2.AttachResponse]:
        if self.refusal is not None:
            await abort(context, RpcError(self.refusal[0], "not now", self.refusal[1]))
        outbox: asyncio.Queue[kvmanager_pb2.AttachResponse | None] = asyncio.Queue()
        self._outboxes.add(outbox)
        tasks = [asyncio.ensure_future(self._read(requests, outbox)), asyncio.ensure_future(self._beat(outbox))]
        try:
            if not self.silent:
                yield kvmanager_pb2.AttachResponse(backend=self.backend)
            while (message := await outbox.get()) is not None:
                if not self.silent:
                    yield message
        finally:
            self._outboxes.discard(outbox)
            for task in tasks:
                task.cancel()

    async def _beat(self, outbox: asyncio.Queue[kvmanager_pb2.AttachResponse | None]) -> None:
        while True:
            await asyncio.sleep(0.2)
            outbox.put_nowait(kvmanager_pb2.AttachResponse())

    async def _read(
        self,
        requests: AsyncIterator[kvmanager_pb2.AttachRequest],
        outbox: asyncio.Queue[kvmanager_pb2.AttachResponse | None],
    ) -> None:
        async for request in requests:
            self.aborts += request.aborts
            if request.HasField("token_interval_us"):
                self.token_intervals.append(request.token_interval_us)
            for submission in request.submissions:
                self.submissions.append(submission)
                self._origins[id(submission)] = outbox
                for message in self.script(submission):
                    if message.ends and submission.HasField("pin") and message.ends[0].HasField("usage"):
                        self.keep(submission)
                    outbox.put_nowait(message)

    def keep(self, submission: kvmanager_pb2.Submission) -> None:
        """From here on there is the pin that it orders."""
        blocks = len(submission.prompt_token_ids) // 4 // MODEL.block_size
        pin = inference_pb2.Pin(
            pin_id=submission.pin.pin_id,
            pinned_tokens=blocks * MODEL.block_size,
            pinned_blocks=blocks,
            resident=True,
        )
        pin.remaining.FromMicroseconds(submission.pin.ttl_us)
        self.pins.setdefault(submission.tenant, {})[pin.pin_id] = pin

    async def Unpin(
        self,
        request: kvmanager_pb2.UnpinRequest,
        context: grpc.aio.ServicerContext[kvmanager_pb2.UnpinRequest, kvmanager_pb2.UnpinResponse],
    ) -> kvmanager_pb2.UnpinResponse:
        self.unpinned.append((request.tenant, request.pin_id))
        if self.pins.get(request.tenant, {}).pop(request.pin_id, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such pin")
        return kvmanager_pb2.UnpinResponse()

    async def ListTenantPins(
        self,
        request: kvmanager_pb2.ListTenantPinsRequest,
        context: grpc.aio.ServicerContext[kvmanager_pb2.ListTenantPinsRequest, kvmanager_pb2.ListTenantPinsResponse],
    ) -> kvmanager_pb2.ListTenantPinsResponse:
        if self.broken is not None:
            await context.abort(self.broken, "out of order")
        return kvmanager_pb2.ListTenantPinsResponse(pins=self.pins.get(request.tenant, {}).values())


def tokens(
    submission: kvmanager_pb2.Submission,
    token_ids: Iterable[int],
    *,
    index: int = 0,
    position: int = 0,
    reason: common_pb2.FinishReason.ValueType = common_pb2.FINISH_REASON_UNSPECIFIED,
    score: float | None = None,
    logprobs: Iterable[float] = (),
) -> kvmanager_pb2.AttachResponse:
    """A message with tokens of one sequence."""
    update = kvmanager_pb2.SequenceUpdate(
        handle=submission.handle,
        sequence_index=index,
        position=position,
        token_ids=token_ids,
        logprobs=[common_pb2.TokenLogprobs(logprob=each) for each in logprobs],
        finish_reason=reason,
        score=score,
    )
    return kvmanager_pb2.AttachResponse(updates=[update])


def columns(submission: kvmanager_pb2.Submission, rows: Sequence[tuple[int, int, int]]) -> kvmanager_pb2.AttachResponse:
    """A message with one token for each of these: sequence index, position, token."""
    indices, positions, token_ids = zip(*rows, strict=True)
    packed = kvmanager_pb2.TokenColumns(
        handles=pack_int64([submission.handle] * len(rows)),
        sequence_indices=pack_int32(indices) if any(indices) else b"",
        positions=pack_int32(positions),
        token_ids=pack_int32(token_ids),
    )
    return kvmanager_pb2.AttachResponse(tokens=packed)


def progress(submission: kvmanager_pb2.Submission, computed: int) -> kvmanager_pb2.AttachResponse:
    """A message that says how much of the prompt has been computed."""
    prompt_tokens = len(submission.prompt_token_ids) // 4
    prefill = inference_pb2.PrefillProgress(computed_tokens=computed, prompt_tokens=prompt_tokens)
    return kvmanager_pb2.AttachResponse(progress=[kvmanager_pb2.Progress(handle=submission.handle, prefill=prefill)])


def end(submission: kvmanager_pb2.Submission, **usage: int) -> kvmanager_pb2.AttachResponse:
    """A message that ends a request well."""
    outcome = kvmanager_pb2.RequestEnd(handle=submission.handle, usage=common_pb2.Usage(**usage))
    return kvmanager_pb2.AttachResponse(ends=[outcome])


def refusal(
    submission: kvmanager_pb2.Submission, code: grpc.StatusCode, message: str, reason: str, retry_after: float = 1.5
) -> kvmanager_pb2.AttachResponse:
    """A message that ends a request with an error."""
    error = kvmanager_pb2.RequestError(
        code=code.value[0], message=message, reason=reason, retry_after_us=round(retry_after * 1e6)
    )
    return kvmanager_pb2.AttachResponse(ends=[kvmanager_pb2.RequestEnd(handle=submission.handle, error=error)])


@asynccontextmanager
async def serving(servicer: ScriptedKVManager) -> AsyncIterator[str]:
    """Serves on loopback and gives the address."""
    server = grpc.aio.server()
    kvmanager_pb2_grpc.add_KVManagerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def eventually(look: Callable[[], object]) -> None:
    """Returns when what it sees is true; fails when that takes very long."""
    for _ in range(6000):
        if look():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("never became true")
