"""The memory map, put together from the messages of a watch."""

from __future__ import annotations

from octavo.v1 import kvmanager_pb2, memory_pb2

BlockKey = tuple[str, int, int]


class MemoryPicture:
    """What somebody who watches from the beginning knows."""

    def __init__(self) -> None:
        self.sizes: dict[str, tuple[int, int]] = {}
        self.blocks: dict[BlockKey, memory_pb2.Block] = {}
        self.num_messages = 0

    def take(self, message: kvmanager_pb2.WatchMemoryResponse) -> None:
        self.num_messages += 1
        name = message.executor
        if message.snapshot or message.removed:
            self.blocks = {key: block for key, block in self.blocks.items() if key[0] != name}
        if message.removed:
            del self.sizes[name]
            return
        assert message.snapshot or name in self.sizes
        self.sizes[name] = (message.num_device_blocks, message.num_host_blocks)
        self.blocks.update({(name, block.tier, block.block_id): block for block in message.blocks})

    def equals(self, state: kvmanager_pb2.GetMemoryMapResponse) -> bool:
        wanted = {
            (each.executor, block.tier, block.block_id): block for each in state.executors for block in each.blocks
        }
        sizes = {each.executor: (each.device.num_blocks, each.host.num_blocks) for each in state.executors}
        return self.blocks == wanted and self.sizes == sizes
