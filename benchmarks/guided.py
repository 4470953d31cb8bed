"""What guided decoding costs: compiling guides, masks, and decode steps with and without guided rows, in turns.

    python -m benchmarks.guided --rows 1 16

Runs the executor alone, in this process, with the demo model's 4-bit weights. Prints JSON lines: `vocabulary_ms` (once
for an executor); each guide's `compile_ms` (once for an executor, while it is kept) and the time to follow one token
and mask the next (`mask_us`, the median over random answers); then for each number of rows the median step in
milliseconds where no row is guided, all are, and every other one is, with the medians of the rounds' ratios. The last
line is the summary.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from executor.executor import Executor
from executor.guides.guides import Guides
from executor.guides.vocabulary import Vocabulary
from executor.loader import load_executor
from executor.settings import ExecutorSettings
from executor.step import NewSequence, SamplingParams, StepBatch
from gateway.guide_compiler import grammar_of
from gateway.loading import load_tokenizer
from gateway.request import Guide, GuideKind
from services.config import cache_folder
from services.model_store import SMOLLM2, fetch_model

_WARM_UP_STEPS = 3
_CONTEXT = 64
_MOST_TOKENS = 120

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "pattern": "^[a-z]+@[a-z]+[.]com$"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
# Answers that do not end while they are measured.
_ENDLESS = {"type": "array", "items": _PERSON, "minItems": 1000}


def _schema(schema: dict[str, Any]) -> str:
    return grammar_of(Guide(GuideKind.JSON_SCHEMA, json.dumps(schema)))


GUIDES = {
    "any object": _schema({"type": "object"}),
    "person": _schema(_PERSON),
    "endless persons": _schema(_ENDLESS),
    "200 properties": _schema(
        {"type": "object", "properties": {f"property {index}": {"type": "string"} for index in range(200)}}
    ),
    "one of 500 values": _schema({"enum": [f"value {index}" for index in range(500)]}),
    "regular expression": grammar_of(Guide(GuideKind.REGEX, r"(\w+@\w+[.](com|org), ){20}")),
    "choice of three": grammar_of(Guide(GuideKind.CHOICE, choices=("yes", "no", "perhaps"))),
}


def measure_guide(guides: Guides, grammar: str, answers: int, rng: random.Random) -> dict[str, float]:
    """Compiling, and then following random answers."""
    start = time.perf_counter()
    guides.start(grammar)
    compiled = time.perf_counter() - start
    masks = []
    for _ in range(answers):
        guide, output = guides.start(grammar), array("q")
        for _ in range(_MOST_TOKENS):
            start = time.perf_counter()
            guide.follow(output, 0)
            masks.append(time.perf_counter() - start)
            allowed = np.flatnonzero(np.unpackbits(guide.allowed.view(np.uint8), bitorder="little"))
            output.append(int(rng.choice(allowed)))
            if guide.is_over:
                break
    masks.sort()
    return {
        "compile_ms": round(1e3 * compiled, 2),
        "mask_us": round(1e6 * statistics.median(masks), 1),
        "mean_mask_us": round(1e6 * statistics.mean(masks), 1),
        "p99_mask_us": round(1e6 * masks[len(masks) * 99 // 100], 1),
    }


class Steps:
    """Decode steps of so many rows, some of them guided."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._epoch = executor.epoch

    def median(self, guided: list[bool], steps: int, seed: int) -> float:
        """Seconds of a step."""
        executor, self._epoch = self._executor, self._epoch + 1
        blocks = -(-(_CONTEXT + _WARM_UP_STEPS + steps + 1) // executor.info.block_size)
        random = np.random.default_rng(seed)
        rows, number, seconds = list(range(len(guided))), 0, []
        for row, is_guided in enumerate(guided):
            tokens = random.integers(100, executor.info.vocab_size, _CONTEXT).tolist()
            params = SamplingParams(seed=seed, guide=GUIDES["endless persons"] if is_guided else None)
            table = list(range(row * blocks, (row + 1) * blocks))
            new = NewSequence(row, tokens, _CONTEXT, 0, table, params, sample_index=row)
            number += 1
            executor.step(
                StepBatch(self._epoch, number, new_sequences=[new], row_sequence_ids=[row], row_num_tokens=[_CONTEXT])
            )
        for index in range(_WARM_UP_STEPS + steps):
            number += 1
            batch = StepBatch(self._epoch, number, row_sequence_ids=rows, row_num_tokens=[1] * len(rows))
            start = time.perf_counter()
            result = executor.step(batch)
            if index >= _WARM_UP_STEPS:
                seconds.append(time.perf_counter() - start)
            assert not result.failures, result.failures
        return statistics.median(seconds)


def measure_steps(steps: Steps, rows: int, count: int, rounds: int) -> dict[str, float]:
    """Medians of the rounds, in which each side has its turn."""
    sides = {
        "unguided": [False] * rows,
        "guided": [True] * rows,
        "mixed": [index % 2 == 0 for index in range(rows)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in names:
            seconds[name].append(steps.median(sides[name], count, seed=number))
    line: dict[str, float] = {"rows": rows}
    for name, each in seconds.items():
        line[f"{name}_step_ms"] = round(1e3 * statistics.median(each), 3)
        line[f"{name}_tokens_per_s"] = round(rows / statistics.median(each), 1)
    for name in ("guided", "mixed"):
        ratios = [slow / fast for slow, fast in zip(seconds[name], seconds["unguided"], strict=True)]
        line[f"{name}_over_unguided"] = round(statistics.median(ratios), 3)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model; the demo model by default")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--steps", type=int, default=60, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--answers", type=int, default=50, help="random answers that each guide follows")
    parser.add_argument("--quantize", default="int4")
    parser.add_argument("--decoder", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = options.model or fetch_model(SMOLLM2.name)

    tokenizer = load_tokenizer(model)
    vocabulary = Vocabulary(tokenizer.backend.to_str(), tokenizer.eos_token_ids)
    executor = load_executor(
        ExecutorSettings(
            model=model,
            kv_memory="256MiB",
            quantize=options.quantize,
            decoder=options.decoder,
            threads=options.threads,
            cache=cache_folder() / "packed",
        ),
        read_vocabulary=lambda: vocabulary,
    )
    summary: dict[str, Any] = {"model": executor.info.model_name, "kernels": executor.info.attention_backend}

    guides = Guides(lambda: vocabulary, executor.info.vocab_size)
    start = time.perf_counter()
    guides.start(GUIDES["choice of three"])
    summary["vocabulary_ms"] = round(1e3 * (time.perf_counter() - start), 1)
    print(json.dumps({"vocabulary_ms": summary["vocabulary_ms"]}))
    rng = random.Random(0)
    for name, grammar in GUIDES.items():
        summary[name] = measure_guide(guides, grammar, options.answers, rng)
        print(json.dumps({"guide": name} | summary[name]), flush=True)
    steps = Steps(executor)
    for rows in options.rows:
        line = measure_steps(steps, rows, options.steps, options.rounds)
        summary[f"{rows} rows"] = line
        print(json.dumps(line), flush=True)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
