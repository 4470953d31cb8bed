"""What a GPU's memory is taken by."""

from __future__ import annotations

import gc
from typing import Protocol

import torch


class DeviceMemory(Protocol):
    """One device's memory, in bytes, as this process sees it."""

    def total(self) -> int:
        """All there is."""

    def free(self) -> int:
        """What nobody holds, this process or another."""

    def held(self) -> int:
        """What torch holds for this process: tensors, and what it keeps for tensors to come."""

    def peak(self) -> int:
        """The most that `held` was since `start_peak`."""

    def start_peak(self) -> None: ...

    def release(self) -> None:
        """Gives back what torch keeps for tensors to come."""


class CudaMemory:
    """A GPU's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def held(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        gc.collect()  # a tensor may hang on a cycle
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
