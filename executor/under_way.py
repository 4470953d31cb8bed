"""A step between the moment when its work is in the device's line and the moment when its result is on the host."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.step import BatchRefused, StepResult


class UnderWay:
    """A step that was launched. On a CPU it is done; a GPU may still be at it, or at the step before.

    All but `wait` is for the thread that launches.

    Args:
        take: makes the result, once the device is done with the step.
        event: behind the step's work in a GPU's line; None where that is done already.
        before: the step before, unless its result was taken.
    """

    def __init__(
        self,
        epoch: int,
        step: int,
        take: Callable[[], StepResult],
        event: torch.cuda.Event | None,
        before: UnderWay | None,
    ) -> None:
        self._epoch = epoch
        self._step = step
        self._take = take
        self._event = event
        self._before = before
        self._result: StepResult | None = None
        self._error: Exception | None = None

    @classmethod
    def done(cls, result: StepResult) -> UnderWay:
        """A step whose result is there already."""
        step = cls(result.epoch, result.step, lambda: result, None, None)
        step._result = result
        return step

    @property
    def is_taken(self) -> bool:
        """Whether the result was made, or failed to be."""
        return self._result is not None or self._error is not None

    @property
    def is_done(self) -> bool:
        """Whether `result` answers at once."""
        if self.is_taken:
            return True
        if self._before is not None and not self._before.is_done:
            return False
        try:
            return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]  # torch's
        except RuntimeError:  # of the work in line: `result` raises it
            return True

    @property
    def failed_step(self) -> int | None:
        """The first step from the one before on that is known to have failed."""
        earlier = None if self._before is None else self._before.failed_step
        return self._step if earlier is None and self._error is not None else earlier

    def wait(self) -> None:
        """Returns when the device is done with the step. Any thread may wait."""
        if self._event is not None:
            self._event.synchronize()

    def finish_before(self) -> None:
        """Has the step before finish."""
        if self._before is not None:
            self._before.finish()

    def result(self) -> StepResult:
        """Waits until the device is done with the step.

        Raises:
            Exception: whatever has happened in the step; each time.
            BatchRefused: the step before has failed, and this one with it.
        """
        self.finish()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def finish(self) -> None:
        """Waits, and takes the result, which is kept for whoever asks; an error shows in `failed_step`."""
        if self.is_taken:
            return
        self.finish_before()
        try:
            if (failed := self.failed_step) is not None:
                raise BatchRefused(f"step {failed} of epoch {self._epoch} failed; a higher epoch must start")
            self.wait()
            self._result = self._take()
            self._before = None
        except Exception as error:
            self._error = error


def mark_in_line(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that is in a GPU's line now; None on a CPU, where all is done."""
    if device.type != "cuda":
        return None
    # Whoever waits for it sleeps.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no types here
    event.record()
    return event
