"""Small tensors between the host and a device, without waiting for what the device is doing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def to_device(values: npt.ArrayLike, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values where `like` lies. The host goes on at once: it may have a GPU's work in line before them.

    Args:
        values: numbers, or rows of them.
        dtype: that of `like` where None.
    """
    tensor = torch.from_numpy(np.asarray(values)).to(dtype or like.dtype)
    if like.is_cuda:
        # From other memory the copy would wait for all that is in line.
        tensor = tensor.pin_memory()
    return tensor.to(like.device, non_blocking=True)


def index(values: npt.ArrayLike, like: torch.Tensor) -> torch.Tensor:
    """`to_device` of indices."""
    return to_device(np.asarray(values, dtype=np.int64), like, torch.int64)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the host's memory: at once on a CPU; from a GPU once all that is in line now is done."""
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
