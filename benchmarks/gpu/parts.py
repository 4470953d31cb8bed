"""Parts of the script, each on its own: what fails in one does not end the others."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.lines import emit, tell


class Parts:
    """Runs parts and collects what they return.

    Args:
        seconds: after which no further part begins.

    Attributes:
        summary: what each part has returned.
        failed: parts that raised something.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self.summary: dict[str, Any] = {}
        self.failed: list[str] = []

    def run(self, name: str, part: Callable[[], Any]) -> None:
        began = time.monotonic()
        if began > self._deadline:
            emit({"part": name, "left_out": 1, "why": "the time for all of it was over"})
            return
        tell(name)
        try:
            self.summary[name] = part()
        except Exception as error:
            tell(traceback.format_exc())
            emit({"part": name, "failed": f"{type(error).__name__}: {error}"})
            self.failed.append(name)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        tell(f"{name}: {time.monotonic() - began:.1f} s")
