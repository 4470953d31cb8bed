"""What to do when memory runs out: see it, give back what is only kept, and say so now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from executor.errors import SettingsError

_log = logging.getLogger(__name__)

# A GPU that is short of memory is so in every step.
_SECONDS_BETWEEN_WARNINGS = 10.0

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


def release_cached(device: torch.device) -> None:
    """Gives back what torch keeps of a GPU's memory for tensors to come: in pieces of other sizes it may suffice."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class MemoryWarnings:
    """Warns of want of memory, at most every ten seconds.

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: float | None = None
        self._num_untold = 0

    def tell(self, what_is_done: str, error: BaseException) -> None:
        """Something is done another way, for want of memory."""
        now = self._clock()
        if self._last is not None and now - self._last < _SECONDS_BETWEEN_WARNINGS:
            self._num_untold += 1
            return
        extra = {"reason": str(error), "times_since_last_warning": self._num_untold + 1}
        _log.warning("for want of memory %s", what_is_done, extra=extra)
        self._last, self._num_untold = now, 0
