"""Small tensors between the host and a device, without waiting for what the device is doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Arrays = Sequence[npt.NDArray[Any]]

# Kernels read faster what lies at multiples of 16 bytes.
_ALIGNMENT = 16


def to_device(values: npt.ArrayLike, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values where `like` lies. The host goes on at once: it may have a GPU's work in line before them.

    Args:
        values: numbers, or rows of them.
        dtype: that of `like` where None.
    """
    tensor = torch.from_numpy(np.asarray(values)).to(dtype or like.dtype)
    return staged(tensor, like.device).to(like.device, non_blocking=True)


def staged(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor in memory from which `device` copies by itself: from other memory a copy waits for all in line."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def index(values: npt.ArrayLike, like: torch.Tensor) -> torch.Tensor:
    """`to_device` of indices."""
    return to_device(np.asarray(values, dtype=np.int64), like, torch.int64)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the host's memory: at once on a CPU; from a GPU once all that is in line now is done."""
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def pack(arrays: Arrays, device: torch.device) -> torch.Tensor:
    """The arrays one after the other as bytes, in memory that `device` can copy from without the host's help.

    A copy with `non_blocking` may still read it when it is no longer referenced: torch reuses pinned memory only when
    copies from it are done.
    """
    offsets, size = _offsets(arrays)
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = packed.numpy()
    for offset, array in zip(offsets, arrays, strict=True):
        memory[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return packed


def unpack(packed: torch.Tensor, arrays: Arrays) -> list[torch.Tensor]:
    """Tensors of the arrays' types and shapes in what `pack` has made of them, wherever that has been copied to."""
    return [
        packed[offset : offset + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for offset, array in zip(_offsets(arrays)[0], arrays, strict=True)
    ]


def upload(arrays: Arrays, device: torch.device) -> list[torch.Tensor]:
    """The arrays on the device, once its stream gets there."""
    return unpack(pack(arrays, device).to(device, non_blocking=True), arrays)


def _offsets(arrays: Arrays) -> tuple[list[int], int]:
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end
