"""The GPU that is measured, or the CPU on which the same code is tried under Triton's interpreter."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.stopwatch import EventStopwatch, Stopwatch, WallStopwatch

# What the interpreter is given to hold.
_TINY_MEMORY = 16 << 20


@dataclass(frozen=True)
class Machine:
    """Where everything runs.

    Attributes:
        tiny: all sizes are the smallest at which the code can be tried; what is timed says nothing.
    """

    device: torch.device
    tiny: bool
    stopwatch: Stopwatch

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        if device.type == "cpu":
            return cls(device, True, WallStopwatch())
        return cls(device, False, EventStopwatch(device))

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability; None of a CPU."""
        return None if self.tiny else torch.cuda.get_device_capability(self.device)

    @property
    def has_fp8(self) -> bool:
        return self.capability is not None and self.capability >= (8, 9)

    def free_bytes(self) -> int:
        """Memory that can be taken."""
        if self.tiny:
            return _TINY_MEMORY
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def rounds(self, count: int) -> int:
        """How often something is measured that is worth being measured so often."""
        return 1 if self.tiny else count

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def facts(self) -> dict[str, Any]:
        """What figures must be read with: card, versions and date."""
        facts = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": _version("triton"),
        }
        if self.tiny:
            return {"device": "cpu", "interpreted": True, **facts}
        card = torch.cuda.get_device_properties(self.device)
        return {
            "device": card.name,
            "capability": f"{card.major}.{card.minor}",
            "memory_gib": round(card.total_memory / 2**30, 1),
            "processors": card.multi_processor_count,
            "driver": _driver(),
            "cuda": torch.version.cuda,
            **facts,
        }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return answer.stdout.split("\n", 1)[0] or "unknown"
