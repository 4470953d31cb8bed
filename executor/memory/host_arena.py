"""Blocks in the host's memory, beside those on the device."""

from __future__ import annotations

import weakref

import torch

from executor.errors import SettingsError
from executor.memory.arena import BlockArena


class HostArena:
    """As many blocks as are wanted, none included, each as large as a block of the device's arena.

    Each block is contiguous, so that it moves between host and device as one piece. The memory is not touched before it
    is first written: on a CPU unused blocks take none. Beside a GPU it is pinned, so that copies run on their own.

    Args:
        memory: bytes to lie in, at least so many; new memory where None.

    Attributes:
        data: [num_blocks, ...], each block as in the arena's `blocks`.

    Raises:
        SettingsError: so much memory can't be pinned.
    """

    def __init__(self, arena: BlockArena, num_blocks: int, memory: torch.Tensor | None = None) -> None:
        self.num_blocks = num_blocks
        shape = (num_blocks, *arena.blocks.shape[1:])
        if memory is None:
            self.data = torch.empty(shape, dtype=arena.data.dtype)
        else:
            self.data = memory[: num_blocks * arena.bytes_per_block].view(arena.data.dtype).view(shape)
        if arena.data.is_cuda and num_blocks:
            self._pin()

    def _pin(self) -> None:
        """Pins exactly this memory; torch's own pinned memory would be rounded up to a power of two."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types here
        address, size = self.data.data_ptr(), self.data.nbytes
        try:
            torch.cuda.check_error(runtime.cudaHostRegister(address, size, 0))
        except torch.cuda.CudaError as error:
            raise SettingsError(f"host_memory: {size} bytes can't be pinned: {error}") from error
        weakref.finalize(self.data, runtime.cudaHostUnregister, address)
