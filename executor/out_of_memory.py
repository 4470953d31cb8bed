"""Which errors say that memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from executor.errors import SettingsError

# What torch, CUDA's libraries and its driver write into errors that have no type of their own.
_SIGNS = (
    "CUDA error: out of memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "Triton Error [CUDA]: out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device, or the host, had no memory left for what failed."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextmanager
def refused_without_memory(message: str) -> Iterator[None]:
    """Turns such an error, at start, into a refusal.

    Raises:
        SettingsError: the message, and what the error says.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise SettingsError(f"{message} ({error})") from error
