"""The executor's metrics. docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from prometheus_client.core import Metric

from executor.executor import Executor
from services.telemetry import step_buckets
from services.telemetry.histogram import Histogram
from services.telemetry.metrics import Metrics

_METRICS = Metrics("octavo_executor_", {})


class ExecutorMetrics:
    """Counts steps since the process started. Written on the thread of steps, read on the event loop's.

    Attributes:
        load_seconds: What it took to load the model, once it is loaded.
        failed_steps: For whatever reason; batches that were refused are none.
    """

    def __init__(self) -> None:
        self.load_seconds = 0.0
        self.failed_steps = 0
        self._step_seconds = Histogram(step_buckets.SECONDS)
        self._step_tokens = Histogram(step_buckets.TOKENS)
        self._step_sequences = Histogram(step_buckets.SEQUENCES)
        self._prefill_tokens = 0
        self._decode_tokens = 0
        self._copied_blocks = 0
        self._swapped_out_blocks = 0
        self._swapped_in_blocks = 0

    def step(self, seconds: float, row_num_tokens: Sequence[int]) -> None:
        """A step is done.

        Args:
            row_num_tokens: Tokens that were computed for each sequence; a single one counts as decoded.
        """
        if not row_num_tokens:  # it only ends something
            return
        num_rows, num_tokens = len(row_num_tokens), sum(row_num_tokens)
        num_decodes = row_num_tokens.count(1)
        self._step_seconds.observe(seconds)
        self._step_tokens.observe(num_tokens)
        self._step_sequences.observe(num_rows)
        self._decode_tokens += num_decodes
        self._prefill_tokens += num_tokens - num_decodes

    def moved(self, copied: int, swapped_out: int, swapped_in: int) -> None:
        """A step has moved blocks."""
        self._copied_blocks += copied
        self._swapped_out_blocks += swapped_out
        self._swapped_in_blocks += swapped_in

    def collect(self, executor: Executor, epoch: int) -> Iterator[Metric]:
        """All of them, as they are now.

        Args:
            epoch: Highest seen.
        """
        info = executor.info
        yield _METRICS.info(
            "model",
            "What this executor runs. The incarnation is new at each start: what blocks held before is gone.",
            {
                "model_name": info.model_name,
                "device": info.device,
                "dtype": info.dtype,
                "kernels": info.attention_backend,
                "tensor_parallel_size": str(info.tensor_parallel_size),
                "block_size": str(info.block_size),
                "incarnation": info.incarnation,
            },
        )
        yield _METRICS.gauge("model_load_seconds", "What it took to load the model.", self.load_seconds)
        yield _METRICS.gauge("epoch", "Highest epoch seen.", epoch)
        yield _METRICS.gauges(
            "blocks",
            "Blocks of key/value memory, by tier.",
            ["tier"],
            {("device",): info.num_blocks, ("host",): info.num_host_blocks},
        )
        yield _METRICS.gauge("block_bytes", "Bytes of one block, on all ranks together.", info.bytes_per_block)
        yield _METRICS.gauge(
            "free_memory_bytes", "Memory that is free where the model computes.", executor.free_memory()
        )
        yield _METRICS.gauges(
            "speed",
            "What is done in a second, as measured at start or since; 0: unknown.",
            ["what"],
            {(name.removesuffix("_per_s"),): speed for name, speed in asdict(executor.speeds).items()},
        )
        yield _METRICS.counters(
            "phase_seconds",
            "Time of all steps' computing by what it was spent on, where the decoder tells.",
            ["phase"],
            {(phase,): seconds for phase, seconds in executor.phase_seconds().items()},
        )
        yield _METRICS.histogram("step_seconds", "From reading a step to its result.", self._step_seconds)
        yield _METRICS.histogram("step_tokens", "Tokens of a step.", self._step_tokens)
        yield _METRICS.histogram("step_sequences", "Sequences with a row in a step.", self._step_sequences)
        yield _METRICS.counters(
            "tokens",
            "Tokens computed; rows of a single one count as decoded.",
            ["phase"],
            {("prefill",): self._prefill_tokens, ("decode",): self._decode_tokens},
        )
        yield _METRICS.counters(
            "moved_blocks",
            "Blocks copied on the device, and moved to the host tier and back.",
            ["how"],
            {
                ("copy",): self._copied_blocks,
                ("swap_out",): self._swapped_out_blocks,
                ("swap_in",): self._swapped_in_blocks,
            },
        )
        yield _METRICS.counter("failed_steps", "Steps that failed, for want of memory for example.", self.failed_steps)
