"""What the device's memory gives: the measure of everything that is bound by it."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.gpu.machine import Machine

_BYTES = 4 << 30
_TINY_BYTES = 1 << 20
_ROUNDS = 11


def copy_bandwidth(machine: Machine) -> float:
    """Bytes a second that a copy on the device moves, reading and writing counted."""
    size = _TINY_BYTES if machine.tiny else min(_BYTES, machine.free_bytes() // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=machine.device)
    target = torch.empty_like(source)
    times = machine.stopwatch.in_turns({"copy": lambda: target.copy_(source)}, machine.rounds(_ROUNDS))["copy"]
    return 2 * size / statistics.median(times)


def host_bandwidth(machine: Machine) -> dict[str, Any]:
    """10**9 bytes a second between pinned host memory and the device, in one piece."""
    size = _TINY_BYTES if machine.tiny else 1 << 30
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=not machine.tiny)
    device = torch.zeros(size, dtype=torch.uint8, device=machine.device)
    times = machine.stopwatch.in_turns(
        {
            "to_host": lambda: host.copy_(device, non_blocking=True),
            "to_device": lambda: device.copy_(host, non_blocking=True),
        },
        5,
    )
    return {f"{side}_gb_s": round(size / statistics.median(seconds) / 1e9, 1) for side, seconds in times.items()}
