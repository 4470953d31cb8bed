"""KVManagerService: hands gateways' requests to the core, its steps to the executor, and its outputs back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import grpc

from kvmanager.errors import RequestError
from kvmanager.manager import KVManager
from kvmanager.scheduler import Limits
from octavo.v1 import executor_pb2, kvmanager_pb2, kvmanager_pb2_grpc
from services.config import ConfigError, KVManagerConfig
from services.kvmanager.codec import (
    decode_capacity,
    decode_result,
    decode_submission,
    encode_batch,
    encode_error,
    encode_memory_map,
    encode_unavailable,
)
from services.kvmanager.executor_link import ExecutorLink
from services.kvmanager.request_traces import RequestTraces
from services.kvmanager.sessions import Sessions
from services.process import run_service
from services.rpc.server import Context, RpcServer
from services.state.store import open_store
from services.telemetry.tracing import make_tracing

log = logging.getLogger(__name__)

SERVICE = kvmanager_pb2.DESCRIPTOR.services_by_name["KVManagerService"].full_name

DRAIN_POLL_SECONDS = 0.02
INTEGRITY_SECONDS = 1.0
STOP_SECONDS = 0.5


class KVManagerServicer(kvmanager_pb2_grpc.KVManagerServiceServicer):
    """One core, driven by three sources of events on one event loop: gateways, the executor, and the clock."""

    def __init__(self, manager: KVManager, traces: RequestTraces) -> None:
        self._manager = manager
        self._traces = traces
        self._sessions = Sessions()
        self._backend = kvmanager_pb2.BackendState()
        self._description: executor_pb2.DescribeResponse | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._draining = False
        self._steps_checked = 0
        self.link: ExecutorLink | None = None
        self.changed = asyncio.Event()

    # Gateways

    async def Attach(
        self, request_iterator: AsyncIterator[kvmanager_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[kvmanager_pb2.AttachResponse]:
        session, outbox = self._sessions.open()
        log.info("gateway attached", extra={"session": session, "peer": context.peer()})
        reader = asyncio.ensure_future(self._read(session, request_iterator))
        reader.add_done_callback(lambda _: outbox.put_nowait(kvmanager_pb2.AttachResponse()))
        try:
            yield kvmanager_pb2.AttachResponse(backend=self._backend)
            while not reader.done() or not outbox.empty():
                yield await outbox.get()
            reader.result()
        finally:
            reader.cancel()
            for handle in self._sessions.close(session):
                self._manager.abort(handle, time.monotonic())
            self._wake()
            log.info("gateway gone", extra={"session": session})

    async def _read(self, session: int, requests: AsyncIterator[kvmanager_pb2.AttachRequest]) -> None:
        async for message in requests:
            for submission in message.submissions:
                self._submit(session, submission)
            for abort in message.aborts:
                self._abort(session, abort)
            self._wake()

    def _submit(self, session: int, submission: kvmanager_pb2.Submission) -> None:
        handle = (session, submission.handle)
        if self._draining or self._manager.capacity is None:
            why = "the KV manager is shutting down" if self._draining else "no executor is connected"
            self._sessions.refuse(*handle, encode_unavailable(why))
            return
        now = time.monotonic()
        if submission.HasField("trace"):
            self._traces.begin(handle, submission.trace)
        try:
            self._manager.submit(decode_submission(submission, session, now), now)
        except (RequestError, ValueError) as error:
            self._traces.discard(handle)
            self._sessions.refuse(*handle, encode_error(error))
            return
        self._sessions.opened(*handle)
        self._set_alarm()

    def _abort(self, session: int, abort: kvmanager_pb2.Abort) -> None:
        now = time.monotonic()
        if abort.HasField("sequence_index"):
            self._sessions.dispatch(self._manager.abort((session, abort.handle), now, abort.sequence_index))
        else:
            self._manager.abort((session, abort.handle), now)
            self._sessions.ended(session, abort.handle)

    async def GetMemoryMap(
        self, request: kvmanager_pb2.GetMemoryMapRequest, context: Context
    ) -> kvmanager_pb2.GetMemoryMapResponse:
        state = self._manager.memory_state()
        if state is None or self._description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no executor is connected")
        assert state is not None
        assert self._description is not None
        blocks = self._manager.block_states() if request.include_blocks else []
        return encode_memory_map(state, self._manager.counters, self._description, blocks)

    # The executor

    def on_attach(self, description: executor_pb2.DescribeResponse, epoch: int) -> None:
        """It can take steps."""
        self._description = description
        outputs = self._manager.attach_executor(decode_capacity(description), time.monotonic())
        self._backend = kvmanager_pb2.BackendState(ready=True, model=description.model, epoch=epoch)
        self._sessions.broadcast(self._backend)
        self._sessions.dispatch(outputs)
        self.changed.set()
        extra = {"model": description.model.name, "blocks": description.model.num_blocks, "epoch": epoch}
        log.info("executor attached", extra=extra)

    def on_detach(self) -> None:
        """It is gone; requests wait."""
        self._manager.detach_executor(time.monotonic())
        self._not_ready()
        self.changed.set()

    def _not_ready(self) -> None:
        self._backend = kvmanager_pb2.BackendState(ready=False, model=self._backend.model, epoch=self._backend.epoch)
        self._sessions.broadcast(self._backend)

    def next_step(self) -> executor_pb2.ExecuteRequest | None:
        """The next step for the executor, if it is time for one."""
        batch = self._manager.schedule(time.monotonic())
        if batch is None:
            return None
        return encode_batch(batch, self._backend.epoch, self._traces.contexts_of_step(batch.step))

    def on_result(self, result: executor_pb2.StepResult) -> None:
        """One step's tokens."""
        self._sessions.dispatch(self._manager.apply(decode_result(result), time.monotonic()))

    def _wake(self) -> None:
        if self.link is not None:
            self.link.wake()

    # The clock

    def _set_alarm(self) -> None:
        deadline = self._manager.next_deadline()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if deadline is not None:
            delay = max(0.0, deadline - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._sessions.dispatch(self._manager.expire(time.monotonic()))
        self._wake()
        self._set_alarm()

    # The end

    async def drain(self, seconds: float) -> None:
        """Refuses new requests, tells the gateways so, and waits for those that run."""
        self._draining = True
        self._not_ready()
        end = time.monotonic() + seconds
        while not self._manager.idle and time.monotonic() < end:
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def check_when_idle(self) -> None:
        """Asserts the core's invariants when nothing runs any more."""
        steps = self._manager.counters.steps
        if self._manager.idle and steps != self._steps_checked:
            self._manager.check_integrity()
            self._steps_checked = steps

    @property
    def ready(self) -> bool:
        """An executor is connected."""
        return self._backend.ready


class KVManagerService:
    """The process: connect to the executor, serve gateways, drain."""

    def __init__(self, config: KVManagerConfig) -> None:
        self._config = config
        try:
            limits = Limits(config.max_batched_tokens, config.max_sequences, config.max_waiting_requests)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._store = open_store(config.state)
        self._tracing = make_tracing("octavo-kvmanager", config.otlp_endpoint)
        traces = RequestTraces(self._tracing, time.time() - time.monotonic())
        manager = KVManager(limits, prefix_caching=config.prefix_caching, on_event=traces.on_event)
        self._servicer = KVManagerServicer(manager, traces)
        self._server = RpcServer(config, [SERVICE])

    async def start(self) -> None:
        kvmanager_pb2_grpc.add_KVManagerServiceServicer_to_server(self._servicer, self._server.grpc)
        await self._server.start()
        servicer = self._servicer
        servicer.link = ExecutorLink(
            self._config.executor,
            self._store,
            servicer.on_attach,
            servicer.on_detach,
            servicer.next_step,
            servicer.on_result,
        )
        self._link = servicer.link

    async def run(self) -> None:
        await asyncio.gather(self._link.run(), self._report_health(), self._check_integrity())

    async def _report_health(self) -> None:
        """SERVING while an executor is connected."""
        while True:
            await self._servicer.changed.wait()
            self._servicer.changed.clear()
            await self._server.set_serving(self._servicer.ready)

    async def _check_integrity(self) -> None:
        while True:
            await asyncio.sleep(INTEGRITY_SECONDS)
            self._servicer.check_when_idle()

    async def stop(self) -> None:
        await self._server.announce_shutdown()
        await self._servicer.drain(self._config.drain_seconds)
        await self._server.stop(STOP_SECONDS)
        await self._store.close()
        self._tracing.shutdown()


def run(config: KVManagerConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the settings contradict each other, or the port is in use.
    """
    run_service("kvmanager", config, lambda: KVManagerService(config))
