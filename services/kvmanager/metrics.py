"""What the KV manager counts beside its core: steps, ends of requests, executors that come and go."""

from __future__ import annotations

from collections import Counter

from kvmanager.request_times import RequestTimes
from kvmanager.step import StepBatch
from services.telemetry import step_buckets
from services.telemetry.histogram import Histogram

ANSWERED = "ANSWERED"
"""How a request ended whose answer is complete, among the reasons of errors."""

_REQUEST_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class DriverMetrics:
    """Counts since the process started, over all its terms. A step costs it a microsecond or two.

    Attributes:
        prefill_tokens, decode_tokens: Computed by steps that were sent.
        planning_seconds, applying_seconds: Of this process, for steps sent and for results taken in.
        step_tokens, step_sequences: Of each step that was sent.
        step_seconds: What each step took its executor, by executor.
        queue_time, prefill_time, decode_time, preempted_time: Seconds, of requests that were answered.
        ended: Requests by how they ended: answered, or the reason of the error. Those whose clients left are not here.
        executors_attached, executors_lost: How often.
        stalls: How often no step went on while there was work.
        stalled: That is so now.
    """

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.planning_seconds = 0.0
        self.applying_seconds = 0.0
        self.step_tokens = Histogram(step_buckets.TOKENS)
        self.step_sequences = Histogram(step_buckets.SEQUENCES)
        self.step_seconds: dict[str, Histogram] = {}
        self.queue_time = Histogram(_REQUEST_SECONDS)
        self.prefill_time = Histogram(_REQUEST_SECONDS)
        self.decode_time = Histogram(_REQUEST_SECONDS)
        self.preempted_time = Histogram(_REQUEST_SECONDS)
        self.ended: Counter[str] = Counter()
        self.executors_attached = 0
        self.executors_lost = 0
        self.stalls = 0
        self.stalled = False

    def sent(self, batch: StepBatch, seconds: float) -> None:
        """A step was sent, and took so long to plan and to write."""
        self.planning_seconds += seconds
        if not batch.row_sequence_ids:  # it only ends something
            return
        num_decodes = batch.num_decodes
        prefill_tokens = sum(batch.row_num_tokens[num_decodes:])
        self.decode_tokens += num_decodes
        self.prefill_tokens += prefill_tokens
        self.step_tokens.observe(num_decodes + prefill_tokens)
        self.step_sequences.observe(len(batch.row_sequence_ids))

    def done(self, executor: str, executor_seconds: float, seconds: float) -> None:
        """A result was taken in.

        Args:
            executor_seconds: What the step took the executor.
            seconds: What it took to read and to apply it.
        """
        self.applying_seconds += seconds
        self.step_seconds[executor].observe(executor_seconds)

    def ended_with(self, reason: str) -> None:
        """A request was refused, or ended early."""
        self.ended[reason] += 1

    def answered(self, times: RequestTimes) -> None:
        """A request has all that was asked for."""
        self.ended[ANSWERED] += 1
        self.queue_time.observe(times.waiting)
        self.prefill_time.observe(times.to_first_token)
        self.decode_time.observe(times.decode)
        self.preempted_time.observe(times.preempted)

    def attached(self, executor: str) -> None:
        """An executor is there."""
        self.executors_attached += 1
        self.step_seconds[executor] = Histogram(step_buckets.SECONDS)

    def detached(self, executor: str, *, lost: bool) -> None:
        """It isn't any more."""
        self.executors_lost += lost
        self.step_seconds.pop(executor, None)

    def stall(self, stalled: bool) -> None:
        """Whether steps go on while there is work."""
        self.stalls += stalled
        self.stalled = stalled
