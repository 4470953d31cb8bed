"""The connection to one executor: describe, then a stream of steps and results, set up again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import grpc

from kvmanager.errors import OutOfOrder
from octavo.v1 import executor_pb2, executor_pb2_grpc
from services.kvmanager.epochs import Deposed, Epochs
from services.kvmanager.lag import sleep_and_measure_lag
from services.kvmanager.step_bound import FIRST_FACTOR, StepBound
from services.rpc.channel import Connect
from services.rpc.columns import unpack_int32
from services.state.executor_registry import LEASE_SECONDS, ExecutorRegistry
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)

DESCRIBE_SECONDS = 5.0
RETRY_SECONDS = 0.1
CHECK_SECONDS = 0.1
"""How often it is looked whether a step takes too long."""

STATUS_SECONDS = 0.5
"""How long the status of a stream is waited for that can't be written to any more."""

REFUSED_SECONDS = 5.0
"""An executor that is refused is asked again after this time: it may have been started anew as what it should be."""

EXHAUSTED_SECONDS = 0.5
MOST_EXHAUSTED_SECONDS = 30.0
"""The first and the longest pause after a step that the executor had no memory for: what takes it may end meanwhile."""

STATUS_SECONDS = 1.0
"""Most time between the end of a stream and its status."""

Stream: TypeAlias = "grpc.aio.StreamStreamCall[executor_pb2.ExecuteRequest, executor_pb2.ExecuteResponse]"


def exhausted_pause(num_before: int) -> float:
    """Seconds before steps are sent again, after so many such failures in a row before this one."""
    return min(EXHAUSTED_SECONDS * 3.0**num_before, MOST_EXHAUSTED_SECONDS)


class ExecutorRefused(Exception):
    """The executor is not one that can be used; the message says why."""


class StepSource(Protocol):
    """Who has steps for executors, each of which goes by its address."""

    def check(self, address: str, description: executor_pb2.DescribeResponse) -> None:
        """Whether it would be taken, before anything is taken from anybody else.

        Raises:
            ExecutorRefused: it is not wanted as it is.
        """

    def attach(
        self,
        address: str,
        description: executor_pb2.DescribeResponse,
        epoch: int,
        stored: Sequence[executor_pb2.StoredBlock],
    ) -> None:
        """It can take steps, and its blocks hold this, in the order in which it was stored.

        Raises:
            ExecutorRefused: it is not wanted as it is.
        """

    def detach(self, address: str) -> None:
        """It is gone."""

    def next_step(self, address: str) -> executor_pb2.ExecuteRequest | None:
        """The next message to send, or None for now; asked again after `ExecutorLink.wake`."""

    def take_result(self, address: str, result: executor_pb2.StepResult) -> None:
        """One step is done."""


class _Known:
    """What is known of one life of an executor, over all connections to it.

    Attributes:
        epoch: the last one that it has taken on from here.
    """

    def __init__(self, incarnation: str, patience: float) -> None:
        self.incarnation = incarnation
        self.epoch: int | None = None
        self.bound = StepBound(patience)


class ExecutorLink:
    """Runs one executor.

    Args:
        address: where it is.
        registry: is told of the executor.
        group: of executors, which one KV manager has at a time.
        epochs: one for each connection.
        source: what it runs.
        patience: least seconds that the executor gets for a step before it counts as lost.
        connect: reaches it.
    """

    def __init__(
        self,
        address: str,
        registry: ExecutorRegistry,
        group: str,
        epochs: Epochs,
        source: StepSource,
        patience: float,
        connect: Connect,
    ) -> None:
        self._address = address
        self._connect = connect
        self._registry = registry
        self._group = group
        self._epochs = epochs
        self._source = source
        self._patience = patience
        self._known = _Known("", patience)
        self._work = asyncio.Event()
        self._leaving = False
        self._num_exhausted = 0

    @property
    def bound(self) -> float:
        """Seconds that the executor gets for the step it is at, or its next one."""
        return self._known.bound.seconds

    def wake(self) -> None:
        """There may be a step to send."""
        self._work.set()

    def leave(self) -> None:
        """The executor is being drained: once its connection breaks it is not set up again."""
        self._leaving = True

    async def run(self) -> None:
        """Stays connected until cancelled, or until it is to leave. The executor is detached then."""
        failures = 0
        refusal = ""
        while not self._leaving:
            try:
                await self._connect_and_serve()
            except (ExecutorRefused, Deposed) as error:
                if str(error) != refusal:
                    refusal = str(error)
                    log.warning("executor refused", extra={"address": self._address, "reason": refusal})
                await asyncio.sleep(REFUSED_SECONDS)
            except _Detached as error:
                failures = 0 if error.served else failures + 1
                known = self._num_exhausted if error.exhausted else failures > 1
                level = logging.DEBUG if known else logging.WARNING
                log.log(level, "executor away", extra={"address": self._address, "reason": str(error)})
                refusal = ""
                await asyncio.sleep(exhausted_pause(self._num_exhausted) if error.exhausted else RETRY_SECONDS)
                self._num_exhausted += error.exhausted

    async def _connect_and_serve(self) -> None:
        async with self._connect(self._address) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            try:
                description = await stub.Describe(executor_pb2.DescribeRequest(), timeout=DESCRIBE_SECONDS)
                self._source.check(self._address, description)
                if description.incarnation != self._known.incarnation:
                    self._known = _Known(description.incarnation, self._patience)
                epoch = await self._epochs.next(description, self._known.epoch)
                stored = await self._take_on(stub, epoch)
            except grpc.aio.AioRpcError as error:
                raise _Detached(f"{error.code().name}: {error.details()}", served=False) from error
            self._source.attach(self._address, description, epoch, stored)
            try:
                await self._serve(stub.Execute(), description)
            finally:
                self._source.detach(self._address)

    async def _take_on(self, stub: executor_pb2_grpc.ExecutorServiceStub, epoch: int) -> list[executor_pb2.StoredBlock]:
        """Gives the executor an epoch, which waits for the steps that it is still at.

        Returns:
            What its blocks hold.
        """
        request = executor_pb2.DescribeBlocksRequest(epoch=epoch)
        call = stub.DescribeBlocks(request, timeout=self._patience * FIRST_FACTOR)
        stored = [block async for message in call for block in message.blocks]
        self._known.epoch = epoch
        return stored

    async def _serve(self, call: Stream, description: executor_pb2.DescribeResponse) -> None:
        """Sends steps and takes results until one of both fails."""
        self._known.bound.connected()
        self._known.bound.prefill_tokens_per_s = description.speeds.prefill_tokens_per_s
        lease = asyncio.ensure_future(self._keep_registered(description))
        receiver = asyncio.ensure_future(self._receive(call))
        sender = asyncio.ensure_future(self._send(call))
        watch = asyncio.ensure_future(self._watch(self._known.bound))
        tasks = receiver, sender, watch
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():  # why it can't send is for the receiver to say
                await asyncio.wait([receiver], timeout=STATUS_SECONDS)
            for task in tasks:
                if task.done():
                    task.result()
        except grpc.aio.AioRpcError as error:
            exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            raise _Detached(f"{error.code().name}: {error.details()}", served=True, exhausted=exhausted) from error
        except (asyncio.InvalidStateError, OutOfOrder, ValueError) as error:
            raise _Detached(str(error) or "the stream is closed", served=True) from error
        finally:
            for task in (*tasks, lease):
                task.cancel()
            await asyncio.gather(*tasks, lease, return_exceptions=True)
            call.cancel()

    async def _send(self, call: Stream) -> None:
        self._work.set()
        while True:
            await self._work.wait()
            self._work.clear()
            while (message := self._source.next_step(self._address)) is not None:
                num_tokens = sum(unpack_int32(message.batch.row_num_tokens))
                self._known.bound.sent(num_tokens, time.monotonic())
                await call.write(message)

    async def _receive(self, call: Stream) -> None:
        async for response in call:
            self._note(response.result)
            self._source.take_result(self._address, response.result)
            self._num_exhausted = 0
        raise _Detached("the executor ended the stream", served=True)

    def _note(self, result: executor_pb2.StepResult) -> None:
        self._known.bound.done(result.duration_us / 1e6, time.monotonic())
        if result.HasField("speeds"):
            self._known.bound.prefill_tokens_per_s = result.speeds.prefill_tokens_per_s

    async def _watch(self, bound: StepBound) -> None:
        """Raises when a step's result does not come in time: the executor hangs, or nobody hears of it any more."""
        while True:
            lag = await sleep_and_measure_lag(CHECK_SECONDS)
            now = time.monotonic()
            bound.forgive(lag, now)
            if bound.is_over(now):
                waited, seconds = round(bound.waited(now), 2), round(bound.seconds, 2)
                extra = {"address": self._address, "waited_seconds": waited, "bound_seconds": seconds}
                log.error("executor hangs", extra=extra)
                bound.lost()
                raise _Detached(f"no result of a step for {waited:g} s; it gets {seconds:g} s", served=True)

    async def _keep_registered(self, description: executor_pb2.DescribeResponse) -> None:
        while not self._leaving:
            with contextlib.suppress(StateUnavailable):
                await self._registry.register(self._group, self._address, description.incarnation)
            await asyncio.sleep(LEASE_SECONDS / 3)


class _Detached(Exception):
    """The executor is gone, for now.

    Attributes:
        served: it was connected.
        exhausted: it had no memory for a step.
    """

    def __init__(self, reason: str, served: bool, exhausted: bool = False) -> None:
        super().__init__(reason)
        self.served = served
        self.exhausted = exhausted
