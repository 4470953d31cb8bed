"""The connection to one executor: describe, then a stream of steps and results, set up again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol, TypeAlias

import grpc

from kvmanager.errors import OutOfOrder
from octavo.v1 import executor_pb2, executor_pb2_grpc
from services.rpc.server import inner_channel
from services.state.executor_registry import LEASE_SECONDS
from services.state.leadership import Holder, NotLeader
from services.state.store import StateStore, StateUnavailable

log = logging.getLogger(__name__)

DESCRIBE_SECONDS = 5.0
RETRY_SECONDS = 0.1
REFUSED_SECONDS = 5.0
"""An executor that is refused is asked again after this time: it may have been started anew as what it should be."""

EXHAUSTED_SECONDS = 0.5
MOST_EXHAUSTED_SECONDS = 30.0
"""The first and the longest pause after a step that the executor had no memory for: what takes it may end meanwhile."""

Stream: TypeAlias = "grpc.aio.StreamStreamCall[executor_pb2.ExecuteRequest, executor_pb2.ExecuteResponse]"


def exhausted_pause(num_before: int) -> float:
    """Seconds before steps are sent again, after so many such failures in a row before this one."""
    return min(EXHAUSTED_SECONDS * 3.0**num_before, MOST_EXHAUSTED_SECONDS)


class ExecutorRefused(Exception):
    """The executor is not one that can be used; the message says why."""


class StepSource(Protocol):
    """Who has steps for executors, each of which goes by its address."""

    def attach(self, address: str, description: executor_pb2.DescribeResponse, epoch: int) -> None:
        """It can take steps.

        Raises:
            ExecutorRefused: it is not wanted as it is.
        """

    def detach(self, address: str) -> None:
        """It is gone."""

    def next_step(self, address: str) -> executor_pb2.ExecuteRequest | None:
        """The next message to send, or None for now; asked again after `ExecutorLink.wake`."""

    def take_result(self, address: str, result: executor_pb2.StepResult) -> None:
        """One step is done."""


class ExecutorLink:
    """Runs one executor.

    Args:
        address: where it is.
        store: gives epochs, is told of the executor.
        group: of executors, which one KV manager has at a time.
        holder: the KV manager, as it appears in the store.
        source: what it runs.
    """

    def __init__(self, address: str, store: StateStore, group: str, holder: Holder, source: StepSource) -> None:
        self._address = address
        self._store = store
        self._group = group
        self._holder = holder
        self._source = source
        self._work = asyncio.Event()
        self._leaving = False
        self._num_exhausted = 0

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
            except ExecutorRefused as error:
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
        async with inner_channel(self._address) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            try:
                description = await stub.Describe(executor_pb2.DescribeRequest(), timeout=DESCRIBE_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise _Detached(f"{error.code().name}: {error.details()}", served=False) from error
            epoch = await self._new_epoch(description)
            self._source.attach(self._address, description, epoch)
            try:
                await self._serve(stub.Execute(), description)
            finally:
                self._source.detach(self._address)

    async def _new_epoch(self, description: executor_pb2.DescribeResponse) -> int:
        """Higher than any the store or the executor has seen."""
        leadership = self._store.leadership
        try:
            await leadership.lead(self._group, self._holder, LEASE_SECONDS)
            return await leadership.next_epoch(self._group, self._holder, above=description.epoch)
        except NotLeader as error:
            raise _Detached("another KV manager leads the group", served=False) from error
        except StateUnavailable as error:
            log.warning("state store is away; the epoch is the executor's", extra={"error": str(error)})
            return int(description.epoch) + 1

    async def _serve(self, call: Stream, description: executor_pb2.DescribeResponse) -> None:
        """Sends steps and takes results until one of both fails."""
        lease = asyncio.ensure_future(self._keep_registered(description))
        tasks = [asyncio.ensure_future(self._send(call)), asyncio.ensure_future(self._receive(call))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.index, reverse=True):  # the receiver knows the status
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
                await call.write(message)

    async def _receive(self, call: Stream) -> None:
        async for response in call:
            self._source.take_result(self._address, response.result)
            self._num_exhausted = 0
        raise _Detached("the executor ended the stream", served=True)

    async def _keep_registered(self, description: executor_pb2.DescribeResponse) -> None:
        while True:
            with contextlib.suppress(StateUnavailable):
                await self._store.executors.register(self._group, self._address, description.incarnation)
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
