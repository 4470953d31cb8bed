"""Where the time of a decode step goes, beside the least that it can take.

    python -m benchmarks.step_profile --batch 1 64 --context 128 [--quantize int4] [--kv-dtype int8]

Runs decode steps of the executor alone, in this process: no services, no KV manager. Prints a JSON line for each batch
size with the median step in milliseconds, the share of each phase of the model, what the executor does around the model
(`around`: checking the batch, sampling, columns), and the floor of `benchmarks.floor`; the last line has all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.floor import floor, read_shape
from benchmarks.model import bf16_folder
from benchmarks.probe import Probe
from executor.executor import Executor
from executor.loader import load_executor
from executor.settings import ExecutorSettings
from executor.step import NewSequence, SamplingParams, StepBatch
from services.config import cache_folder

_WARM_UP_STEPS = 5
# The memory of blocks is touched ahead by a thread of its own, which is done by then.
_SETTLING_SECONDS = 4.0
_GREEDY = SamplingParams(temperature=0)
# Of a weight, scales and minimums included.
_WEIGHT_BITS = {"none": 16.0, "int8": 9.0, "int4": 5.0}


class _Decoding:
    """Rows that decode, one token a step, in blocks of their own."""

    def __init__(self, executor: Executor, batch: int, context: int, steps: int, epoch: int) -> None:
        info = executor.info
        blocks = -(-(context + _WARM_UP_STEPS + steps + 1) // info.block_size)
        if batch * blocks > info.num_blocks:
            raise SystemExit(
                f"{batch} rows of {context} tokens need {batch * blocks} blocks; there are {info.num_blocks}"
            )
        random = np.random.default_rng(batch)
        self._executor = executor
        self._epoch = epoch
        self._ids = list(range(batch))
        self._step = 0
        for row in self._ids:
            tokens = random.integers(0, info.vocab_size, context).tolist()
            table = list(range(row * blocks, (row + 1) * blocks))
            self._run([row], [context], [NewSequence(row, tokens, context, 0, table, _GREEDY)])

    def step(self) -> float:
        """Seconds of one step."""
        start = time.perf_counter()
        self._run(self._ids, [1] * len(self._ids), [])
        return time.perf_counter() - start

    def _run(self, rows: list[int], counts: list[int], new: list[NewSequence]) -> None:
        self._step += 1
        self._executor.step(
            StepBatch(self._epoch, self._step, new_sequences=new, row_sequence_ids=rows, row_num_tokens=counts)
        )


def settle(executor: Executor) -> None:
    """Computes a prompt again and again until nothing else of the start is under way."""
    tokens = list(range(min(64, executor.info.max_model_len)))
    table = list(range(-(-len(tokens) // executor.info.block_size)))
    new = NewSequence(0, tokens, len(tokens), 0, table, _GREEDY)
    end = time.perf_counter() + _SETTLING_SECONDS
    step = 0
    while time.perf_counter() < end:
        step += 1
        executor.step(StepBatch(1, step, new_sequences=[new], row_sequence_ids=[0], row_num_tokens=[len(tokens)]))


def profile(executor: Executor, batch: int, context: int, steps: int, epoch: int) -> dict[str, Any]:
    """The median step, and the mean of each phase, in milliseconds."""
    rows = _Decoding(executor, batch, context, steps, epoch)
    for _ in range(_WARM_UP_STEPS):
        rows.step()
    before = executor.phase_seconds()
    seconds = [rows.step() for _ in range(steps)]
    after = executor.phase_seconds()
    phases = {name: 1000 * (after[name] - before[name]) / steps for name in after}
    phases["around"] = 1000 * statistics.mean(seconds) - sum(phases.values())
    return {
        "batch": batch,
        "context": context,
        "step_ms": round(1000 * statistics.median(seconds), 3),
        "best_step_ms": round(1000 * min(seconds), 3),
        "tokens_per_s": round(batch / statistics.median(seconds), 1),
        "phase_ms": {name: round(value, 3) for name, value in phases.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64], help="rows of a step")
    parser.add_argument("--context", type=int, default=128, help="tokens that each row attends to")
    parser.add_argument("--steps", type=int, default=50, help="steps that are measured")
    parser.add_argument("--quantize", choices=list(_WEIGHT_BITS), default="none")
    parser.add_argument("--kv-dtype", choices=["auto", "int8"], default="auto")
    args = parser.parse_args()
    settings = ExecutorSettings(
        model=bf16_folder(),
        kv_memory="1GiB",
        quantize=args.quantize,
        kv_dtype=args.kv_dtype,
        cache=cache_folder() / "packed",
    )
    executor = load_executor(settings)
    shape = read_shape(bf16_folder())
    lines = []
    settle(executor)
    with Probe() as probe:
        for epoch, batch in enumerate(args.batch, start=2):
            line = profile(executor, batch, args.context, args.steps, epoch)
            least = floor(shape, batch, args.context, _WEIGHT_BITS[args.quantize], probe.measure())
            lines.append(line | {"floor_ms": max(least["byte_ms"], least["operation_ms"]), "probe": least["probe"]})
            print(json.dumps(lines[-1]))
    print(json.dumps({"kernels": executor.info.attention_backend, "quantize": args.quantize, "batches": lines}))


if __name__ == "__main__":
    main()
