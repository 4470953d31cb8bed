"""ExecutorService: hands step batches to the executor core and its results back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import grpc

from executor.errors import CheckpointError, SettingsError, UnsupportedModel
from executor.executor import Executor
from executor.loader import ExecutorSettings, load_executor
from executor.step import BatchRefused
from octavo.v1 import executor_pb2, executor_pb2_grpc
from services.config import ConfigError, ExecutorConfig
from services.executor.codec import decode_batch, encode_description, encode_result
from services.process import run_service
from services.rpc.server import Context, RpcServer
from services.telemetry.tracing import SpanRecord, Tracing, make_tracing

log = logging.getLogger(__name__)

SERVICE = executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name

Steps: TypeAlias = "asyncio.Queue[asyncio.Future[executor_pb2.StepResult] | None]"


class ExecutorServicer(executor_pb2_grpc.ExecutorServiceServicer):
    """Steps run one after the other on a thread of their own: the next starts the moment the one before is done.

    Args:
        on_call: told of each stream of steps as it starts.
    """

    def __init__(self, executor: Executor, tracing: Tracing, on_call: Callable[[Context], None]) -> None:
        self._executor = executor
        self._tracing = tracing
        self._on_call = on_call
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")
        self._draining = asyncio.Event()

    async def Describe(self, request: executor_pb2.DescribeRequest, context: Context) -> executor_pb2.DescribeResponse:
        return encode_description(self._executor.info, self._executor.epoch, self._executor.speeds)

    async def Execute(
        self, request_iterator: AsyncIterator[executor_pb2.ExecuteRequest], context: Context
    ) -> AsyncIterator[executor_pb2.ExecuteResponse]:
        self._on_call(context)
        steps: Steps = asyncio.Queue()
        reader = asyncio.ensure_future(self._read(request_iterator, steps))
        drain = asyncio.ensure_future(self._stop_when_draining(reader, steps))
        try:
            while (step := await steps.get()) is not None:
                yield executor_pb2.ExecuteResponse(result=await step)
            if self._draining.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the executor is shutting down")
        except (BatchRefused, ValueError) as error:
            log.warning("batch refused", extra={"reason": str(error)})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            reader.cancel()
            drain.cancel()

    async def _read(self, requests: AsyncIterator[executor_pb2.ExecuteRequest], steps: Steps) -> None:
        """Puts each batch in line as it arrives, so that the thread never waits for the event loop."""
        loop = asyncio.get_running_loop()
        try:
            async for request in requests:
                steps.put_nowait(loop.run_in_executor(self._thread, self._step, request.batch))
        finally:
            steps.put_nowait(None)

    async def _stop_when_draining(self, reader: asyncio.Future[None], steps: Steps) -> None:
        await self._draining.wait()
        reader.cancel()

    def _step(self, message: executor_pb2.StepBatch) -> executor_pb2.StepResult:
        start_ns = time.time_ns()
        start = time.perf_counter_ns()
        batch = decode_batch(message)
        result = self._executor.step(batch)
        duration_ns = time.perf_counter_ns() - start
        if message.traces:
            attributes = {
                "octavo.step": batch.step,
                "octavo.rows": len(batch.row_sequence_ids),
                "octavo.tokens": sum(batch.row_num_tokens),
            }
            span = SpanRecord("executor.step", start_ns, start_ns + duration_ns, attributes)
            self._tracing.record(message.traces[0], [span], message.traces[1:])
        return encode_result(result, duration_ns // 1000)

    async def drain(self) -> None:
        """Lets steps that are under way finish, and ends the streams."""
        self._draining.set()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


class ExecutorService:
    """The process: load the model, serve, drain."""

    def __init__(self, config: ExecutorConfig) -> None:
        self._config = config
        self._tracing = make_tracing("octavo-executor", config.otlp_endpoint)
        self._server = RpcServer(config, [SERVICE])

    async def start(self) -> None:
        loader = asyncio.get_running_loop().run_in_executor(None, _load, self._config)
        executor = await loader
        self._servicer = ExecutorServicer(executor, self._tracing, self._server.count)
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(self._servicer, self._server.grpc)
        await self._server.start()
        await self._server.set_serving(True)

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        await self._server.announce_shutdown()
        await self._servicer.drain()
        await self._server.stop(self._config.drain_seconds)
        self._servicer.close()
        self._tracing.shutdown()


def _load(config: ExecutorConfig) -> Executor:
    start = time.perf_counter()
    settings = ExecutorSettings(
        model=Path(config.model),
        model_name=config.model_name,
        dtype=config.dtype,
        device=config.device,
        block_size=config.block_size,
        kv_memory=config.kv_memory,
        host_memory=config.host_memory,
        max_model_len=config.max_model_len,
        threads=config.threads,
        attention_backend=config.attention_backend,
    )
    try:
        executor = load_executor(settings, time.perf_counter)
    except (CheckpointError, SettingsError, UnsupportedModel) as error:
        raise ConfigError(str(error)) from error
    info = executor.info
    extra = {
        "model": info.model_name,
        "device": info.device,
        "dtype": info.dtype,
        "blocks": info.num_blocks,
        "block_size": info.block_size,
        "kv_bytes": info.num_blocks * info.bytes_per_block,
        "host_blocks": info.num_host_blocks,
        "prefill_tokens_per_s": round(executor.speeds.prefill_tokens_per_s),
        "seconds": round(time.perf_counter() - start, 2),
    }
    log.info("model loaded", extra=extra)
    return executor


def run(config: ExecutorConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the model can't be loaded, or the port is in use.
    """
    run_service("executor", config, lambda: ExecutorService(config))
