"""More memory than there is, of which little is touched."""

from __future__ import annotations

import mmap

import torch

_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux: pages that are never touched are not promised either


def vast_memory(num_bytes: int) -> torch.Tensor:
    """So many bytes, uint8; they take no memory before they are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)
