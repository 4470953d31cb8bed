"""The connection to the executor: describe, then one stream of steps and results, set up again whenever it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

import grpc

from kvmanager.errors import OutOfOrder
from octavo.v1 import executor_pb2, executor_pb2_grpc
from services.rpc.server import inner_channel
from services.state.store import LEASE_SECONDS, StateStore, StateUnavailable

log = logging.getLogger(__name__)

DESCRIBE_SECONDS = 5.0
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)

Stream: TypeAlias = "grpc.aio.StreamStreamCall[executor_pb2.ExecuteRequest, executor_pb2.ExecuteResponse]"

NextStep = Callable[[], executor_pb2.ExecuteRequest | None]
OnResult = Callable[[executor_pb2.StepResult], None]


class ExecutorLink:
    """Runs one executor.

    Args:
        address: where it is.
        store: gives epochs, is told of the executor.
        on_attach: called with its description and the new epoch when it can take steps.
        on_detach: called when it is gone.
        next_step: the next message to send, or None for now; called again after `wake`.
        on_result: called with each result.
    """

    def __init__(
        self,
        address: str,
        store: StateStore,
        on_attach: Callable[[executor_pb2.DescribeResponse, int], None],
        on_detach: Callable[[], None],
        next_step: NextStep,
        on_result: OnResult,
    ) -> None:
        self._address = address
        self._store = store
        self._on_attach = on_attach
        self._on_detach = on_detach
        self._next_step = next_step
        self._on_result = on_result
        self._work = asyncio.Event()

    def wake(self) -> None:
        """There may be a step to send."""
        self._work.set()

    async def run(self) -> None:
        """Stays connected until cancelled."""
        failures = 0
        while True:
            try:
                await self._connect_and_serve()
                failures = 0
            except _Detached as error:
                failures = 0 if error.served else failures + 1
                level = logging.WARNING if error.served or failures == 1 else logging.DEBUG
                log.log(level, "executor away", extra={"address": self._address, "reason": str(error)})
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])

    async def _connect_and_serve(self) -> None:
        async with inner_channel(self._address) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            try:
                description = await stub.Describe(executor_pb2.DescribeRequest(), timeout=DESCRIBE_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise _Detached(f"{error.code().name}: {error.details()}", served=False) from error
            epoch = await self._new_epoch(description)
            call = stub.Execute()
            self._on_attach(description, epoch)
            lease = asyncio.ensure_future(self._keep_registered(description))
            try:
                await self._serve(call)
            finally:
                lease.cancel()
                call.cancel()
                self._on_detach()

    async def _new_epoch(self, description: executor_pb2.DescribeResponse) -> int:
        """Higher than any the store or the executor has seen."""
        try:
            return await self._store.next_epoch(description.model.name, above=description.epoch)
        except StateUnavailable as error:
            log.warning("state store is away; the epoch is the executor's", extra={"error": str(error)})
            return int(description.epoch) + 1

    async def _serve(self, call: Stream) -> None:
        """Sends steps and takes results until one of both fails."""
        tasks = [asyncio.ensure_future(self._send(call)), asyncio.ensure_future(self._receive(call))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.index, reverse=True):  # the receiver knows the status
                task.result()
        except grpc.aio.AioRpcError as error:
            raise _Detached(f"{error.code().name}: {error.details()}", served=True) from error
        except (asyncio.InvalidStateError, OutOfOrder, ValueError) as error:
            raise _Detached(str(error) or "the stream is closed", served=True) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, call: Stream) -> None:
        self._work.set()
        while True:
            await self._work.wait()
            self._work.clear()
            while (message := self._next_step()) is not None:
                await call.write(message)

    async def _receive(self, call: Stream) -> None:
        async for response in call:
            self._on_result(response.result)
            self.wake()
        raise _Detached("the executor ended the stream", served=True)

    async def _keep_registered(self, description: executor_pb2.DescribeResponse) -> None:
        while True:
            await self._store.register_executor(description.model.name, self._address, description.incarnation)
            await asyncio.sleep(LEASE_SECONDS / 3)


class _Detached(Exception):
    """The executor is gone, for now."""

    def __init__(self, reason: str, served: bool) -> None:
        super().__init__(reason)
        self.served = served
