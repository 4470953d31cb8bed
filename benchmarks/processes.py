"""What a process and everything that it started have used, as Linux tells in /proc."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> list[int]:
    """Ids of a running process and of all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def cpu_seconds(pids: Collection[int]) -> float:
    """Processor time, of user and system, of these processes since their start."""
    ticks = 0
    for pid in pids:
        if (fields := _stat(pid)) is not None:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def peak_memory_mb(pids: Collection[int]) -> float:
    """Sum of the most resident memory that each has had (VmHWM), in MB of 10**6 bytes. Shared pages count each time."""
    return sum(_kibibytes(_PROC / str(pid) / "status", "VmHWM:") for pid in pids) * 1024 / 1e6


def proportional_memory_mb(pids: Collection[int]) -> float:
    """Resident memory now, each page divided among those that share it (PSS), in MB of 10**6 bytes."""
    return sum(_kibibytes(_PROC / str(pid) / "smaps_rollup", "Pss:") for pid in pids) * 1024 / 1e6


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None where the process is gone."""
    try:
        # The name before may hold spaces and brackets.
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _kibibytes(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)
