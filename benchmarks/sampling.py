"""What choosing a step's tokens costs: native code against torch, in turns, by kind of sampling and number of rows.

    python -m benchmarks.sampling --rows 1 64 --threads 2

Prints a JSON line for each kind and number of rows: the median of the rounds in milliseconds of wall clock
(`native_ms`, `torch_ms`), the shortest round (`..._best_ms`) and the median processor time of all threads
(`..._cpu_ms`); and `torch_over_native`, the median of the rounds' ratios of wall clock. The last line is the summary:
the same figures by name. Logits are normally distributed; with a spread of 4 it takes about 200 of 49,152 tokens to
make up 90 % of the probability, which is the median of SmolLM2-135M on English text.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

# Before torch is imported: on a busy machine, threads that spin take the processor from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch

from executor.native import Crew, load_library
from executor.native.sampling import NativeSampler
from executor.sampling.samplers import Sampler, TorchSampler
from executor.sequences import SequenceState
from executor.step import Penalties, SamplingParams

PROMPT_TOKENS, OUTPUT_TOKENS = 200, 300

KINDS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "penalties": SamplingParams(temperature=0, penalties=Penalties(presence=0.5, frequency=0.5, repetition=1.1)),
    "logprobs": SamplingParams(temperature=0, logprobs=5),
    "all": SamplingParams(
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.02,
        logprobs=5,
        penalties=Penalties(presence=0.5, frequency=0.5, repetition=1.1, logit_bias={5: 1.0}),
    ),
    "beams": SamplingParams(),
}
_BEAM_CANDIDATES = 8


class Timed:
    """One sampler's rounds, in seconds."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.wall: list[float] = []
        self.cpu: list[float] = []
        call()

    def run(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self._call()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


def measure(native: Sampler, logits: torch.Tensor, kind: str, rounds: int, rng: random.Random) -> dict[str, Any]:
    """Figures of one kind, every row of the logits sampled by a sequence of its own."""
    sequences = [_sequence(i, kind, logits.shape[1], rng) for i in range(len(logits))]
    rows = range(len(sequences))

    def call(sampler: Sampler) -> Callable[[], object]:
        if kind == "beams":
            return lambda: sampler.candidates(logits, rows, sequences)()
        return lambda: sampler.sample(logits, rows, sequences).finish()

    ours, theirs = Timed(call(native)), Timed(call(TorchSampler()))
    for number in range(rounds):
        for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            side.run()
    ratios = [slow / fast for fast, slow in zip(ours.wall, theirs.wall, strict=True)]
    return {
        "kind": kind,
        "rows": len(logits),
        **_figures("native", ours),
        **_figures("torch", theirs),
        "torch_over_native": round(statistics.median(ratios), 1),
    }


def _figures(side: str, timed: Timed) -> dict[str, float]:
    return {
        f"{side}_ms": round(1000 * statistics.median(timed.wall), 4),
        f"{side}_best_ms": round(1000 * min(timed.wall), 4),
        f"{side}_cpu_ms": round(1000 * statistics.median(timed.cpu), 4),
    }


def _sequence(sequence_id: int, kind: str, vocab_size: int, rng: random.Random) -> SequenceState:
    return SequenceState(
        sequence_id=sequence_id,
        token_ids=array("q", rng.choices(range(vocab_size), k=PROMPT_TOKENS + OUTPUT_TOKENS)),
        prompt_length=PROMPT_TOKENS,
        num_computed=0,
        block_table=array("q"),
        sampling=KINDS[kind],
        sample_index=0,
        num_candidates=_BEAM_CANDIDATES if kind == "beams" else 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--vocab-size", type=int, default=49_152)
    parser.add_argument("--spread", type=float, default=4.0, help="standard deviation of the logits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", help="of CPU features; the best that runs here by default")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    library = load_library(options.level)
    native = NativeSampler(library, Crew(library, options.threads), options.vocab_size)
    summary: dict[str, Any] = {
        "vocab_size": options.vocab_size,
        "spread": options.spread,
        "threads": options.threads,
        "level": library.level,
        "rounds": options.rounds,
    }
    for num_rows in options.rows:
        logits = options.spread * torch.randn(num_rows, options.vocab_size)
        for kind in options.kinds:
            figures = measure(native, logits, kind, options.rounds, rng)
            print(json.dumps(figures), flush=True)
            summary[f"{figures.pop('kind')}, {figures.pop('rows')} rows"] = figures
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
