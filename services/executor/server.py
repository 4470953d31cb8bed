"""ExecutorService: hands step batches to the executor core and its results back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from executor.errors import StepOutOfMemory
from executor.executor import Executor
from executor.step import BatchRefused
from executor.under_way import UnderWay
from octavo.v1 import executor_pb2
from services.config import ExecutorConfig
from services.executor.codec import decode_batch, encode_description, encode_records, encode_result
from services.executor.leading_rank import LeadingRank
from services.executor.loading import load
from services.executor.metrics import ExecutorMetrics
from services.executor.step_stream import StepStream
from services.executor.step_thread import StepThread
from services.process import run_service
from services.rpc.roles import CALLERS
from services.rpc.server import Context, RpcServer
from services.telemetry.metrics import Exposition
from services.telemetry.metrics_server import MetricsServer
from services.telemetry.tracing import SpanRecord, Tracing, make_tracing

log = logging.getLogger(__name__)

SERVICE = executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name


SHUTTING_DOWN = "the executor is shutting down"


def _go_on(error: Exception) -> None:
    """What one rank alone makes of a failed step: whoever sent it starts anew."""


@dataclass(frozen=True, slots=True)
class _SentStep:
    data: bytes
    stream: StepStream


class ExecutorServicer:
    """Describes the executor, and hands it steps.

    Messages of `Execute` stay bytes here, so that the event loop, which shares Python's lock with the thread of steps,
    has as little to do as possible.

    Args:
        on_call: told of each stream of steps as it starts.
        metrics: told of each step.
        on_broken: told of what went wrong in the middle of a step, before whoever sent it is.
    """

    def __init__(
        self,
        executor: Executor,
        tracing: Tracing,
        on_call: Callable[[Context], None],
        metrics: ExecutorMetrics,
        on_broken: Callable[[Exception], None] = _go_on,
    ) -> None:
        self._executor = executor
        self._tracing = tracing
        self._on_call = on_call
        self._metrics = metrics
        self._on_broken = on_broken
        self._thread = StepThread(self._launch)
        self._streams: set[StepStream] = set()
        self._fence = 0
        self._draining = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Highest epoch seen. A step of a lower one that is in line is refused when its turn comes."""
        return max(self._fence, self._executor.epoch)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it."""
        describe = grpc.unary_unary_rpc_method_handler(
            self.describe,
            request_deserializer=executor_pb2.DescribeRequest.FromString,
            response_serializer=executor_pb2.DescribeResponse.SerializeToString,
        )
        execute = grpc.stream_stream_rpc_method_handler(self.execute)
        describe_blocks = grpc.unary_stream_rpc_method_handler(
            self.describe_blocks,
            request_deserializer=executor_pb2.DescribeBlocksRequest.FromString,
            response_serializer=executor_pb2.DescribeBlocksResponse.SerializeToString,
        )
        methods = {"Describe": describe, "Execute": execute, "DescribeBlocks": describe_blocks}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def describe(self, request: executor_pb2.DescribeRequest, context: Context) -> executor_pb2.DescribeResponse:
        return encode_description(self._executor.info, self.epoch, self._executor.speeds)

    async def describe_blocks(self, request: executor_pb2.DescribeBlocksRequest, context: Context) -> None:
        self._on_call(context)
        if self._draining.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        try:
            records = await self._begin_epoch(request.epoch)
        except BatchRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        log.info("epoch begins", extra={"epoch": request.epoch, "stored_blocks": len(records)})
        for message in encode_records(records):
            await context.write(message)

    async def _begin_epoch(self, epoch: int) -> list[bytes]:
        """Whoever led before hears of it at once; what blocks hold is known when no step is under way any more.

        Raises:
            BatchRefused: the epoch is not above all before.
        """
        if epoch <= self.epoch:
            raise BatchRefused(f"epoch {epoch} is not above {self.epoch}")
        self._fence = epoch
        for stream in self._streams:  # whoever leads from here on has opened none yet
            stream.end(epoch)
        return await asyncio.wrap_future(self._thread.call(lambda: self._executor.begin_epoch(epoch)))

    def _on_epoch(self, epoch: int) -> None:
        """Steps come under this epoch: a higher one than those of other streams ends them."""
        for stream in self._streams:
            if stream.epoch is not None and stream.epoch < epoch:
                stream.end(epoch)

    async def execute(self, requests: AsyncIterator[bytes], context: Context) -> None:
        self._on_call(context)
        stream = StepStream(self._on_epoch)
        self._streams.add(stream)
        reader = asyncio.ensure_future(self._read(requests, stream))
        drain = asyncio.ensure_future(self._stop_when_draining(reader))
        try:
            while (outcome := await stream.outcomes.get()) is not None:
                if isinstance(outcome, Exception):
                    raise outcome
                await context.write(outcome)
            if self._draining.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        except (BatchRefused, ValueError, DecodeError) as error:
            log.warning("batch refused", extra={"reason": str(error)})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except StepOutOfMemory as error:
            log.error("a step failed for want of memory", extra={"reason": str(error)})
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._streams.discard(stream)
            reader.cancel()
            drain.cancel()

    async def _read(self, requests: AsyncIterator[bytes], stream: StepStream) -> None:
        """Puts each batch in line as it arrives, so that the thread never waits for the event loop."""
        try:
            async for request in requests:
                self._thread.submit(_SentStep(request, stream), stream.deliver)
        finally:
            self._thread.end_stream(stream.deliver)

    async def _stop_when_draining(self, reader: asyncio.Future[None]) -> None:
        await self._draining.wait()
        reader.cancel()

    def _launch(self, sent: _SentStep) -> _LaunchedStep:
        start_ns = time.time_ns()
        start = time.perf_counter_ns()
        message = executor_pb2.ExecuteRequest.FromString(sent.data).batch
        batch = decode_batch(message)
        if batch.epoch < self._fence:
            raise BatchRefused(f"epoch {batch.epoch} is older than {self._fence}")
        with self._telling():
            under_way = self._executor.launch(batch)
        sent.stream.take_on(batch.epoch)

        def finish() -> bytes:
            with self._telling():
                result = under_way.result()
            duration_ns = time.perf_counter_ns() - start
            self._metrics.step(duration_ns / 1e9, batch.row_num_tokens)
            if batch.block_copies or batch.swaps_out or batch.swaps_in:
                self._metrics.moved(len(batch.block_copies), len(batch.swaps_out), len(batch.swaps_in))
            if message.traces:
                attributes = {
                    "octavo.step": batch.step,
                    "octavo.rows": len(batch.row_sequence_ids),
                    "octavo.tokens": sum(batch.row_num_tokens),
                }
                span = SpanRecord("executor.step", start_ns, start_ns + duration_ns, attributes)
                self._tracing.record(message.traces[0], [span], message.traces[1:])
            return encode_result(result, duration_ns // 1000).SerializeToString()

        return _LaunchedStep(under_way, finish)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tells of what goes wrong in a step."""
        try:
            yield
        except BatchRefused:
            raise
        except Exception as error:
            self._metrics.failed_steps += 1
            self._on_broken(error)
            raise

    async def drain(self) -> None:
        """Lets steps that are under way finish, and ends the streams."""
        self._draining.set()

    def close(self) -> None:
        """Returns when no step runs any more."""
        self._thread.close()


class _LaunchedStep:
    """A step under way whose result comes as a message (`services.executor.step_thread.Launched`)."""

    def __init__(self, under_way: UnderWay, finish: Callable[[], bytes]) -> None:
        self._under_way = under_way
        self._finish = finish

    @property
    def is_done(self) -> bool:
        return self._under_way.is_done

    def wait(self) -> None:
        self._under_way.wait()

    def result(self) -> bytes:
        return self._finish()


class ExecutorService:
    """The process: load the model, serve, drain."""

    def __init__(self, config: ExecutorConfig) -> None:
        self._config = config
        self._tracing = make_tracing("octavo-executor", config.otlp_endpoint)
        self._server = RpcServer(config, [SERVICE], callers=CALLERS["executor"])
        self._ranks: LeadingRank | None = None
        self._metrics = ExecutorMetrics()

    async def start(self) -> None:
        began = time.monotonic()
        loader = asyncio.get_running_loop().run_in_executor(None, self._load)
        executor = await loader
        self._metrics.load_seconds = time.monotonic() - began
        on_broken = self._ranks.break_off if self._ranks else _go_on
        self._servicer = servicer = ExecutorServicer(
            executor, self._tracing, self._server.count, self._metrics, on_broken
        )
        exposition = Exposition(lambda: self._metrics.collect(executor, servicer.epoch))
        self._metrics_server = MetricsServer(self._config, exposition)
        self._server.grpc.add_generic_rpc_handlers([self._servicer.handlers()])
        await self._server.start()
        await self._metrics_server.start()
        await self._server.set_serving(True)

    def _load(self) -> Executor:
        if self._config.tensor_parallel_size == 1:
            return load(self._config)
        self._ranks = LeadingRank(self._config)
        return self._ranks.load()

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        await self._server.announce_shutdown()
        await self._servicer.drain()
        await self._server.stop(self._config.drain_seconds)
        self._servicer.close()
        if self._ranks is not None:
            self._ranks.stop()
        await self._metrics_server.stop()
        self._tracing.shutdown()


def run(config: ExecutorConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the model can't be loaded, or the port is in use.
    """
    run_service("executor", config, lambda: ExecutorService(config))
