"""How much memory is free now."""

from __future__ import annotations

from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`; on the CPU no more than a container's limit leaves."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = available_in_meminfo(_MEMINFO.read_text())
    left = left_in_cgroup(_CGROUP)
    return available if left is None else min(available, left)


def available_in_meminfo(meminfo: str) -> int:
    """Bytes of the line `MemAvailable: ... kB` of /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")


def left_in_cgroup(folder: Path) -> int | None:
    """Bytes that a version 2 control group may still take; None without a limit.

    File pages that were not used lately count as free: the kernel drops them first (a model's file is in them).
    """
    try:
        limit, used, stat = (
            (folder / name).read_text().strip() for name in ("memory.max", "memory.current", "memory.stat")
        )
    except OSError:
        return None
    if limit == "max":
        return None
    droppable = dict(line.split() for line in stat.splitlines()).get("inactive_file", "0")
    return max(0, int(limit) - int(used) + int(droppable))
