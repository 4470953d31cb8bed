"""How much memory the processes hold while they serve, and whether it stays flat."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

MIB = 1024 * 1024
_SECONDS_BETWEEN_SAMPLES = 0.5
# Each figure is the median over this part of all samples, so that one step's scratch memory does not decide.
_WINDOW = 0.1


@dataclass(frozen=True)
class Bound:
    """Most growth from the end of the first third to the end: so many bytes, and a share of what there was."""

    num_bytes: int
    share: float = 0.0

    def of(self, before: float) -> float:
        """The bound in bytes."""
        return self.num_bytes + self.share * before


# Two thirds of a soak of 500 requests are some 330 requests and 7,000 tokens: a leak of 32 KiB a request in the first
# two, or of 16 KiB a token in the executor, breaks these. Without one the first two grew by 1 MiB at most.
BOUNDS: Mapping[str, Bound] = {
    "gateway": Bound(8 * MIB),
    "kvmanager": Bound(8 * MIB),
    # Its allocator keeps the scratch memory of the largest step so far, which may come late.
    "executor": Bound(30 * MIB, share=0.05),
}


@dataclass(frozen=True)
class Growth:
    """A process's resident memory in bytes: at the first sample, after a third of the time, at the end, at most."""

    first: int
    third: int
    end: int
    peak: int

    @classmethod
    def of(cls, samples: Sequence[int]) -> "Growth":
        """Reads evenly spaced samples."""
        window = max(1, round(len(samples) * _WINDOW))
        third = max(window, len(samples) // 3)
        return cls(
            samples[0],
            round(median(samples[third - window : third])),
            round(median(samples[-window:])),
            max(samples),
        )

    def problem(self, name: str) -> str | None:
        """Says so where a process of this name is not flat; several executors are executor-1, executor-2 and so on."""
        bound = BOUNDS[name.partition("-")[0]].of(self.third)
        if self.end - self.third <= bound:
            return None
        return (
            f"{name} grew from {self.third / MIB:.1f} MiB after a third of the time to {self.end / MIB:.1f} MiB, "
            f"more than {bound / MIB:.1f} MiB"
        )


class MemoryLog:
    """Samples the resident memory of some processes."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.seconds: list[float] = []
        self.samples: dict[str, list[int]] = {name: [] for name in pids}

    async def watch(self) -> None:
        """Samples until it is cancelled, or until one of the processes is gone."""
        started = time.monotonic()
        while all([self._sample(name, pid) for name, pid in self._pids.items()]):
            self.seconds.append(round(time.monotonic() - started, 1))
            await asyncio.sleep(_SECONDS_BETWEEN_SAMPLES)

    def _sample(self, name: str, pid: int) -> bool:
        resident = resident_bytes(pid)
        if resident is not None:
            self.samples[name].append(resident)
        return resident is not None

    def growth(self) -> dict[str, Growth]:
        """By process; those that were never seen are missing."""
        return {name: Growth.of(samples) for name, samples in self.samples.items() if samples}


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None where it is gone, or where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)
