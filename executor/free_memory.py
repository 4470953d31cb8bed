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
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - int(used)))


def available_in_meminfo(meminfo: str) -> int:
    """Bytes of the line `MemAvailable: ... kB` of /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")
