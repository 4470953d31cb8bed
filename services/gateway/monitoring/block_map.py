"""The physical blocks of all executors, followed once for all who watch them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from octavo.v1 import common_pb2, kvmanager_pb2, memory_pb2
from services.gateway.monitoring.groups import Group
from services.rpc.status import RpcError

LOOK_SECONDS = 0.1
"""The KV manager is asked for changes so often, which is as often as anybody may hear of them."""

_RETRY_SECONDS = 0.25

BlockKey = tuple[common_pb2.Tier, int]
"""Tier and id."""


@dataclass(slots=True)
class ExecutorBlocks:
    """All blocks of one executor, as they are."""

    num_device_blocks: int = 0
    num_host_blocks: int = 0
    blocks: dict[BlockKey, memory_pb2.Block] = field(default_factory=dict)


class Watcher(Protocol):
    """Whoever watches. It is told at once, and looks when it has time."""

    def started(self, executor: str) -> None:
        """What was known of the executor's blocks is void."""

    def changed(self, executor: str, keys: Sequence[BlockKey]) -> None:
        """These blocks may have changed."""

    def gone(self, executor: str) -> None:
        """The executor is no longer there."""


class BlockMap:
    """Follows the blocks while somebody watches.

    Attributes:
        executors: The blocks, by executor.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self.executors: dict[str, ExecutorBlocks] = {}
        self._watchers: list[Watcher] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, watcher: Watcher) -> None:
        """Somebody watches from here on."""
        self._watchers.append(watcher)
        for executor, known in self.executors.items():
            watcher.started(executor)
            watcher.changed(executor, list(known.blocks))
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow(group)) for group in self._groups]

    def remove(self, watcher: Watcher) -> None:
        """Somebody watches no longer. With the last one the map is forgotten."""
        self._watchers = [each for each in self._watchers if each is not watcher]
        if not self._watchers:
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()
            self.executors.clear()

    async def _follow(self, group: Group) -> None:
        """Again and again, for whoever leads the group."""
        while True:
            mine: set[str] = set()
            with suppress(RpcError):
                async for message in group.link.watch_memory(LOOK_SECONDS):
                    executor = group.named(message.executor)
                    mine.add(executor)
                    self._take(executor, message)
            for executor in mine:
                self._forget(executor)
            await asyncio.sleep(_RETRY_SECONDS)

    def _take(self, executor: str, message: kvmanager_pb2.WatchMemoryResponse) -> None:
        if message.removed:
            self._forget(executor)
            return
        if message.snapshot:
            self.executors[executor] = ExecutorBlocks(message.num_device_blocks, message.num_host_blocks)
            for watcher in self._watchers:
                watcher.started(executor)
        changed = {(block.tier, block.block_id): block for block in message.blocks}
        self.executors[executor].blocks.update(changed)
        for watcher in self._watchers:
            watcher.changed(executor, list(changed))

    def _forget(self, executor: str) -> None:
        if self.executors.pop(executor, None) is not None:
            for watcher in self._watchers:
                watcher.gone(executor)
