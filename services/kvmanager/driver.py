"""One core, driven by three sources of events on one event loop: gateways, executors, and the clock."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from kvmanager.accounts import Quota
from kvmanager.errors import RequestError
from kvmanager.manager import KVManager
from kvmanager.spec import RequestSpec
from kvmanager.step import Outputs
from octavo.v1 import executor_pb2, inference_pb2, kvmanager_pb2
from services.kvmanager.codec import (
    decode_capacity,
    decode_result,
    decode_speeds,
    decode_stored_blocks,
    decode_submission,
    encode_batch,
    encode_error,
    encode_unavailable,
)
from services.kvmanager.executor_link import ExecutorRefused
from services.kvmanager.metrics import DriverMetrics
from services.kvmanager.request_traces import RequestTraces
from services.kvmanager.sessions import Session, Sessions
from services.kvmanager.timelines import Timelines
from services.rpc.status import RpcError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02

LAST_STEP_SECONDS = 2.0
"""Most time that steps under way get when another KV manager is to take over."""


class Driver:
    """Hands requests to the core, its steps to the executors, and its outputs to the gateways."""

    def __init__(self, manager: KVManager, traces: RequestTraces, timelines: Timelines, metrics: DriverMetrics) -> None:
        self.manager = manager
        self.metrics = metrics
        self.on_work: Callable[[], None] = lambda: None
        """Called when there may be a step to send, to whatever executor."""
        self.backend = kvmanager_pb2.BackendState()
        self.changed = asyncio.Event()
        """Set when `backend` or `serving` has changed."""
        self.num_step_events = 0
        """Steps that were sent, and results that came."""
        self.bytes_per_block = 0
        """Of the largest executor."""
        self._traces = traces
        self._timelines = timelines
        self._sessions = Sessions()
        self._descriptions: dict[str, executor_pb2.DescribeResponse] = {}
        self._epochs: dict[str, int] = {}
        self._first: executor_pb2.DescribeResponse | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_time: float | None = None
        self._draining = False
        self._halted = False
        self._over = False
        self._stalled = False
        self._steps_checked = 0

    @property
    def serving(self) -> bool:
        """Whether requests are taken, and steps go on."""
        return self.backend.ready and not self._stalled

    # Gateways

    @property
    def num_sessions(self) -> int:
        """Gateways that are attached."""
        return len(self._sessions)

    def open_session(self) -> Session:
        """A gateway is there. What it is to hear comes out of the session's outbox."""
        return self._sessions.open()

    def close_session(self, session: int) -> None:
        """A gateway is gone, and its requests with it."""
        for handle in self._sessions.close(session):
            self.manager.abort(handle, time.monotonic())
        self.on_work()

    def beat(self) -> None:
        """Lets gateways hear that this KV manager is there."""
        if not self._over:
            self._sessions.beat()

    def take(self, session: int, message: kvmanager_pb2.AttachRequest) -> None:
        """What a gateway has to say."""
        if message.HasField("token_interval_us"):
            self._sessions.pace(session, message.token_interval_us / 1e6)
        for submission in message.submissions:
            self._submit(session, submission)
        for abort in message.aborts:
            self._abort(session, abort)
        self.on_work()

    def _submit(self, session: int, submission: kvmanager_pb2.Submission) -> None:
        handle = (session, submission.handle)
        if self._draining:
            self._sessions.refuse(*handle, encode_unavailable("the KV manager is shutting down", "DRAINING"))
            return
        if self.manager.capacity is None:
            self._sessions.refuse(*handle, encode_unavailable("no executor is connected"))
            return
        now = time.monotonic()
        if submission.HasField("trace"):
            self._traces.begin(handle, submission.trace)
        try:
            spec = decode_submission(submission, session, now)
            self._timelines.begin(spec, submission.request_id)
            outputs = self.manager.submit(spec, now)
        except (RequestError, ValueError) as error:
            self._traces.discard(handle)
            self._timelines.discard(handle)
            refusal = encode_error(error)
            self.metrics.ended_with(refusal.reason)
            self._sessions.refuse(*handle, refusal)
            return
        self._sessions.opened(*handle)
        self._dispatch(outputs)
        self._set_alarm()

    def _abort(self, session: int, abort: kvmanager_pb2.Abort) -> None:
        now = time.monotonic()
        if abort.HasField("sequence_index"):
            self._dispatch(self.manager.abort((session, abort.handle), now, abort.sequence_index))
        else:
            self.manager.abort((session, abort.handle), now)
            self._sessions.ended(session, abort.handle)

    def unpin(self, tenant: str, pin_id: str) -> bool:
        """Lets go of a tenant's pin. Returns False if it has no such pin."""
        found = self.manager.unpin(tenant, pin_id, time.monotonic())
        self.on_work()
        return found

    def restore_pin(self, spec: RequestSpec, seconds_left: float) -> None:
        """Takes on a pin of a KV manager that is gone."""
        now = time.monotonic()
        self.manager.restore_pin(spec, now + seconds_left, now)
        self._settle(Outputs())

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Tenants may have something else of the blocks from here on."""
        self._settle(self.manager.set_quotas(quotas, time.monotonic()))

    # Executors

    def check(self, address: str, description: executor_pb2.DescribeResponse) -> None:
        """Whether an executor could be attached.

        Raises:
            ExecutorRefused: it is not a replica of the others, or it is one of the others.
        """
        for other, known in self._descriptions.items():
            if known.incarnation == description.incarnation:
                raise ExecutorRefused(f"it is the executor that is connected at {other}")
            _check_same(("block_size", "max_model_len"), known.model, description.model, f"that of {other}")
        if self._first is not None:
            _check_same(("name", "vocab_size"), self._first.model, description.model, "that of the first executor")

    def attach(
        self,
        address: str,
        description: executor_pb2.DescribeResponse,
        epoch: int,
        stored: Sequence[executor_pb2.StoredBlock],
    ) -> None:
        """An executor can take steps.

        Raises:
            ExecutorRefused: see `check`.
        """
        self.check(address, description)
        is_first = self._first is None
        self._first = self._first or description
        self._descriptions[address] = description
        self.metrics.attached(address)
        self._epochs[address] = epoch
        outputs = self.manager.attach_executor(
            address,
            decode_capacity(description),
            time.monotonic(),
            decode_speeds(description.speeds),
            decode_stored_blocks(stored),
        )
        if is_first:  # nothing is gone yet, and gateways wait
            gc.freeze()
        else:
            keep_from_collector()
        self._update_backend()
        self._settle(outputs)
        self._log_attached(address, description, epoch, len(stored))

    def _log_attached(
        self, address: str, description: executor_pb2.DescribeResponse, epoch: int, num_stored: int
    ) -> None:
        model = description.model
        extra = {"address": address, "model": model.name, "blocks": model.num_blocks, "epoch": epoch}
        extra |= {"host_blocks": description.num_host_blocks, "stored_blocks": num_stored}
        log.info("executor attached", extra=extra)
        asked, limits = self.manager.limits, self.manager.replicas[address].scheduler.limits
        for name in ("max_batched_tokens", "max_sequences"):
            if getattr(limits, name) < getattr(asked, name):
                least = {"address": address, "executor": getattr(limits, name), "kvmanager": getattr(asked, name)}
                log.warning("%s is that of the executor, which has no memory for more", name, extra=least)

    def detach(self, address: str) -> None:
        """An executor is gone; its requests go on elsewhere, or wait."""
        if self._over:
            return
        del self._descriptions[address]
        self.metrics.detached(address, lost=not self.is_draining(address))
        outputs = self.manager.detach_executor(address, time.monotonic())
        self._update_backend()
        self._settle(outputs)

    def start_draining(self, address: str) -> None:
        """Gives an executor nothing new from here on."""
        if address in self.manager.replicas:
            outputs = self.manager.drain_executor(address, time.monotonic())
            self._update_backend()
            self._settle(outputs)

    def is_drained(self, address: str) -> bool:
        """Nothing runs on it any more."""
        replica = self.manager.replicas.get(address)
        return replica is None or replica.idle

    def is_draining(self, address: str) -> bool:
        """It is given nothing new any more."""
        replica = self.manager.replicas.get(address)
        return replica is not None and replica.draining

    def is_attached(self, address: str) -> bool:
        return address in self.manager.replicas

    @property
    def has_work(self) -> bool:
        """There is a request or a step under way, and an executor."""
        return bool(self.manager.replicas) and not self.manager.idle

    def report_stall(self, stalled: bool) -> None:
        """Whether steps go on while there is work."""
        if stalled == self._stalled:
            return
        self._stalled = stalled
        self.metrics.stall(stalled)
        if stalled:
            log.error("there is work, and no step goes on", extra={"waiting_requests": self.manager.num_waiting})
        else:
            log.info("steps go on again")
        self.changed.set()

    def next_step(self, address: str) -> executor_pb2.ExecuteRequest | None:
        """The next step for an executor, if it is time for one."""
        start = time.monotonic()
        batch = None if self._halted else self.manager.schedule(address, start)
        if batch is None:
            return None
        self.num_step_events += 1
        message = encode_batch(batch, self._epochs[address], self._traces.contexts_of_step(address, batch.step))
        self.metrics.sent(batch, time.monotonic() - start)
        return message

    def take_result(self, address: str, result: executor_pb2.StepResult) -> None:
        """One step's tokens. Other executors may have work by it, too: a draining one's requests, or a line's first."""
        self.num_step_events += 1
        start = time.monotonic()
        outputs = self.manager.apply(address, decode_result(result), start)
        self.metrics.done(address, result.duration_us / 1e6, time.monotonic() - start)
        self._dispatch(outputs)
        if outputs.ends:
            self._set_alarm()  # a pin's time begins when it has been computed
        self.on_work()

    def _dispatch(self, outputs: Outputs) -> None:
        for end in outputs.ends:
            if end.error is not None:
                self.metrics.ended_with(encode_error(end.error).reason)
            elif end.times is not None:
                self.metrics.answered(end.times)
        self._sessions.dispatch(outputs)

    def _settle(self, outputs: Outputs) -> None:
        self._dispatch(outputs)
        self._set_alarm()
        self.on_work()

    def _update_backend(self) -> None:
        """Tells the gateways if the backend is not what it was. Its model is that of the largest executor."""
        open_ones = [
            self._descriptions[name]
            for name, replica in self.manager.replicas.items()
            if not replica.draining and name in self._descriptions
        ]
        backend = kvmanager_pb2.BackendState()
        backend.CopyFrom(self.backend)
        backend.ready = bool(open_ones) and not self._draining
        backend.epoch = max(self._epochs.values(), default=0)
        if open_ones:
            largest = max(open_ones, key=lambda each: each.model.num_blocks)
            backend.model.CopyFrom(largest.model)
            self.bytes_per_block = largest.bytes_per_block
        if backend != self.backend:
            self.backend = backend
            self._sessions.broadcast(backend)
            self.changed.set()

    # The clock

    def _set_alarm(self) -> None:
        if self._over:
            return
        deadline = self.manager.next_deadline()
        if deadline == self._alarm_time:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_time = deadline
        if deadline is not None:
            delay = max(0.0, deadline - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._alarm_time = None
        self._settle(self.manager.expire(time.monotonic()))

    # The end

    def start_refusing(self) -> None:
        """Takes no new requests from here on, and tells the gateways so."""
        self._draining = True
        self._update_backend()

    async def drain(self, seconds: float) -> None:
        """Takes no new requests, and waits for those that run."""
        self.start_refusing()
        await self._wait(seconds, lambda: self.manager.idle)

    async def halt(self) -> None:
        """Takes no new requests, and waits for the steps that are under way; no other begins."""
        self.start_refusing()
        self._halted = True
        await self._wait(LAST_STEP_SECONDS, lambda: not self.manager.under_way)

    async def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)

    def end(self, farewell: RpcError, *, complete: bool) -> None:
        """Ends every gateway's stream, and does nothing more. Requests go on elsewhere.

        Args:
            complete: What the steps so far have brought is sent before.
        """
        self._over = self._halted = True
        self._sessions.end_all(farewell, complete)
        if self._alarm is not None:
            self._alarm.cancel()

    def check_when_idle(self) -> None:
        """Asserts the core's invariants when nothing runs any more."""
        steps = self.manager.counters.steps
        if self.manager.idle and steps != self._steps_checked:
            self.manager.check_integrity()
            self._steps_checked = steps


def keep_from_collector() -> None:
    """Blocks live as long as their executor: looking through all of them for garbage would hold up steps now and then.

    Those of executors that are gone are looked through this once, and so is what else is gone.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _check_same(fields: Sequence[str], others: inference_pb2.Model, model: inference_pb2.Model, whose: str) -> None:
    """Replicas may differ in the size of their memory only: a request may go on with any of them.

    Raises:
        ExecutorRefused: naming what differs.
    """
    for field in fields:
        theirs, its = getattr(others, field), getattr(model, field)
        if theirs != its:
            raise ExecutorRefused(f"its model's {field} is {its!r}; {whose} is {theirs!r}")
