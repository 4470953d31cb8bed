"""`python -m benchmarks.perplexity --text FILE`: what number formats of weights, keys and values lose on real text.

The text is cut into windows of as many tokens, each computed by itself, in chunks. Perplexity is e to the mean of
-log p over all tokens but the first of each window. Formats are compared on the same windows, in turns, and so is the
speed of a step in which each of `--rows` sequences of 128 tokens gets one more.

Weights: float32, bfloat16, int8 (groups of 32 around zero) and int4 (groups of 32 with a minimum; a GGUF's own 4-bit
codes are kept). Products with int8 and int4 also round their activations to 8 bits. Keys and values: as the weights
(bfloat16 with int8 and int4), or int8.

Prints a JSON line for each pair of formats; the last line is the summary.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from executor.families import family_of
from executor.memory.arena import BlockArena
from executor.model_choice import load_model
from executor.model_runner import ModelRunner, Row
from executor.progress import tell_nobody
from executor.sequences import SequenceState
from executor.settings import ExecutorSettings
from executor.step import NewSequence, SamplingParams
from executor.weights import open_checkpoint
from gateway.loading import load_tokenizer
from services.model_store import SMOLLM2, resolve_model

WEIGHTS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "int4": {"dtype": "bfloat16", "quantize": "int4"},
}
KEYS_AND_VALUES: dict[str, dict[str, Any]] = {"own": {}, "int8": {"kv_dtype": "int8"}}

_BLOCK_SIZE = 16
_CHUNK = 256
_CONTEXT = 128  # tokens of each sequence in timed steps
_GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Formats:
    """A model in one pair of formats, and what was measured with it.

    Attributes:
        nats: -log p, summed over `tokens` tokens.
        step_ms: of the steps by number of rows.
    """

    weights: str
    kv: str
    runner: ModelRunner
    nats: float = 0.0
    tokens: int = 0
    step_ms: dict[int, list[float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.weights}+{self.kv}_kv"

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.tokens)

    def line(self) -> dict[str, object]:
        steps = {f"step_ms_{rows}": round(statistics.median(times), 3) for rows, times in self.step_ms.items()}
        return {"weights": self.weights, "kv": self.kv, "perplexity": round(self.perplexity, 4)} | steps


def load(model: Path, weights: str, kv: str, num_blocks: int, threads: int) -> Formats:
    """The model with blocks for so many."""
    settings = ExecutorSettings(
        model,
        "1MiB",
        decoder="native",
        block_size=_BLOCK_SIZE,
        threads=threads,
        **WEIGHTS[weights] | KEYS_AND_VALUES[kv],
    )
    checkpoint = open_checkpoint(model)
    family = family_of(checkpoint.config)
    loaded, _ = load_model(
        settings, checkpoint, family, family.describe(checkpoint.config), torch.device("cpu"), tell_nobody
    )
    arena: BlockArena = loaded.arena(num_blocks)
    return Formats(weights, kv, loaded.runner(arena))


def add_window(formats: Formats, tokens: Sequence[int]) -> None:
    """Adds what the model makes of a window's tokens."""
    sequence = _sequence(0, tokens, first_block=0)
    while sequence.num_computed < len(tokens) - 1:
        first = sequence.num_computed
        count = min(_CHUNK, len(tokens) - 1 - first)
        logits = formats.runner.run([Row(sequence, count)], every_token=True)
        targets = torch.tensor(tokens[first + 1 : first + 1 + count])
        formats.nats += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
        formats.tokens += count
        sequence.num_computed += count


def time_step(formats: Formats, tokens: Sequence[int], num_rows: int, clock: Callable[[], float]) -> None:
    """One step of as many sequences that begin with the same tokens; their keys and values may be anything."""
    blocks = _CONTEXT // _BLOCK_SIZE
    rows = [Row(_sequence(index, tokens[:_CONTEXT], index * blocks), 1) for index in range(num_rows)]
    for row in rows:
        row.sequence.num_computed = _CONTEXT - 1
    begin = clock()
    formats.runner.run(rows)
    formats.step_ms.setdefault(num_rows, []).append((clock() - begin) * 1e3)


def _sequence(sequence_id: int, tokens: Sequence[int], first_block: int) -> SequenceState:
    table = list(range(first_block, first_block - (-len(tokens) // _BLOCK_SIZE)))
    return SequenceState.start(NewSequence(sequence_id, list(tokens), len(tokens), 0, table, _GREEDY))


def main(
    text: Annotated[Path, typer.Option(help="A file of plain text.")],
    model: Annotated[str, typer.Option(help="Folder, GGUF file, or name of the model.")] = SMOLLM2.name,
    weights: Annotated[str, typer.Option(help="Formats of weights, with commas between them.")] = ",".join(WEIGHTS),
    kv: Annotated[str, typer.Option(help="The same of keys and values.")] = ",".join(KEYS_AND_VALUES),
    windows: Annotated[int, typer.Option(min=1, help="Windows of text.")] = 16,
    window: Annotated[int, typer.Option(min=_CONTEXT, help="Tokens in each.")] = 1024,
    rows: Annotated[str, typer.Option(help="Numbers of sequences in timed steps, with commas.")] = "1,64",
    steps: Annotated[int, typer.Option(min=0, help="Timed steps of each number, after a first one.")] = 20,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Measure the perplexity and the speed of number formats."""
    path = Path(resolve_model(model))
    numbers = [int(number) for number in rows.split(",")]
    tokens = load_tokenizer(path).encode(text.read_text("utf-8"), add_special_tokens=False)[: windows * window]
    if len(tokens) < windows * window:
        raise typer.BadParameter(f"{text} has only {len(tokens)} tokens of {windows * window}")
    num_blocks = max(-(-window // _BLOCK_SIZE), max(numbers) * _CONTEXT // _BLOCK_SIZE if steps else 0)
    all_formats = [
        load(path, each, other, num_blocks, threads) for each in weights.split(",") for other in kv.split(",")
    ]
    for first in range(0, len(tokens), window):
        for formats in all_formats:
            add_window(formats, tokens[first : first + window])
    for num_rows in numbers if steps else ():
        for _ in range(1 + steps):
            for formats in all_formats:
                time_step(formats, tokens[:window], num_rows, time.perf_counter)
    for formats in all_formats:
        print(json.dumps(formats.line()), flush=True)
    perplexities = {formats.name: round(formats.perplexity, 4) for formats in all_formats}
    losses = {formats.name: round(formats.perplexity / all_formats[0].perplexity - 1, 5) for formats in all_formats}
    print(
        json.dumps(
            {"tokens": all_formats[0].tokens, "perplexity": perplexities, f"above_{all_formats[0].name}": losses}
        )
    )


if __name__ == "__main__":
    typer.run(main)
