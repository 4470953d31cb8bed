"""Greedy answers of a whole model against the same model in plain torch, in float32 on the CPU.

Two sides that round differently part company at the first close call, and all that follows differs. So each token is
judged in its own context: how much less likely than the best one it is to the reference that has read the same tokens
(`regret`, in logits). In float32 that must be next to nothing, in bfloat16 little.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.generate import greedy
from benchmarks.gpu.lines import emit, tell
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.random_model import write_random_model
from benchmarks.gpu.results import Checks
from benchmarks.gpu.shapes import Shape
from executor.families import family_of
from executor.loader import load_executor
from executor.model_choice import load_model
from executor.model_runner import ModelRunner, Row
from executor.progress import tell_nobody
from executor.sequences import SequenceState
from executor.settings import ExecutorSettings
from executor.step import NewSequence, SamplingParams
from executor.weights import open_checkpoint

# Largest regret in logits. In plain torch on a CPU it is 0 in float32, and 0.2 in bfloat16 (SmolLM2, 384 tokens).
_LIMITS = {"float32": 0.01, "bfloat16": 0.6}

_SMALL = Shape("random", 4, 2, 32, 2, 128, 192, 512, tied_embeddings=False)
# Number format, and whether decodes are recorded as CUDA graphs.
_VARIANTS = (("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True))
_TINY_VARIANTS = (("float32", False),)

_TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "List three reasons why people keep gardens.\n1.",
    "In 1969, the first human beings walked on the",
    "Question: What is 12 times 12? Answer:",
    "Dear Sir or Madam,\n\nI am writing to you because",
)


@contextmanager
def model_to_check(model: Path | None, seed: int) -> Iterator[tuple[Path, list[list[int]]]]:
    """A model and prompts for it; a small one with random weights where none is given."""
    if model is not None:
        # Only here: without a model, torch, Triton and safetensors are all that this needs.
        from gateway.loading import load_tokenizer

        tokenizer = load_tokenizer(model)
        yield model, [tokenizer.encode(text) for text in _TEXTS]
        return
    emit({"check": "model", "note": "a small model with random weights, as no other is here"})
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(_SMALL, Path(folder), seed)
        yield Path(folder), [rng.choices(range(3, _SMALL.vocab_size), k=rng.randrange(1, 40)) for _ in range(3)]


def check_model(
    machine: Machine, model: Path, prompts: Sequence[Sequence[int]], checks: Checks, attention: str = "triton"
) -> None:
    """Checks answers in each number format.

    Args:
        attention: the backend's name.
    """
    max_tokens = 4 if machine.tiny else 48
    reference = _Reference(model, max(map(len, prompts)) + max_tokens)
    tell(f"greedy answers of {model.name} on the CPU")
    expected = [reference.greedy(prompt, max_tokens) for prompt in prompts]
    found: dict[str, list[list[int]]] = {"the CPU": expected}
    for dtype, graphs in _TINY_VARIANTS if machine.tiny else _VARIANTS:
        settings = ExecutorSettings(
            model,
            kv_memory="64MiB",
            device=machine.device.type,
            dtype=dtype,
            decoder="torch",
            attention_backend=attention,
            max_sequences=len(prompts),
            cuda_graphs=graphs,
        )
        name = f"{dtype}, {'CUDA graphs' if graphs else 'no graphs'}"
        answers = found[name] = []
        regret = partial(_largest_regret, settings, prompts, max_tokens, answers, reference)
        checks.measure("greedy answers", _LIMITS[dtype], regret, dtype=dtype, cuda_graphs=graphs)
    for (one, first), (other, second) in itertools.combinations(found.items(), 2):
        emit({"check": "greedy answers", "of": [one, other], **_agreement(first, second)})


def _largest_regret(
    settings: ExecutorSettings,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    answers: list[list[int]],
    reference: _Reference,
) -> float:
    """Of any token of the answers, which are kept."""
    answers += greedy(load_executor(settings), prompts, max_tokens)
    return max(map(reference.regret, prompts, answers))


def _agreement(first: Sequence[list[int]], second: Sequence[list[int]]) -> dict[str, int]:
    """How many answers are equal as a whole, and how many begin alike, which says how close the calls were."""
    pairs = list(zip(first, second, strict=False))
    return {
        "answers": len(pairs),
        "equal": sum(one == other for one, other in pairs),
        "equal_first_tokens": sum(one[0] == other[0] for one, other in pairs),
    }


class _Reference:
    """The model in plain torch."""

    def __init__(self, model: Path, max_tokens: int) -> None:
        settings = ExecutorSettings(
            model, kv_memory="0", device="cpu", dtype="float32", decoder="torch", attention_backend="reference"
        )
        checkpoint = open_checkpoint(model)
        family = family_of(checkpoint.config)
        description = family.describe(checkpoint.config)
        loaded, _ = load_model(settings, checkpoint, family, description, torch.device("cpu"), tell_nobody)
        self._num_blocks = -(-max_tokens // settings.block_size)
        self._runner: ModelRunner = loaded.runner(loaded.arena(self._num_blocks))

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        sequence = self._sequence(prompt)
        for _ in range(max_tokens):
            row = Row(sequence, len(sequence.token_ids) - sequence.num_computed)
            token = int(self._run(row)[-1].argmax())
            sequence.num_computed = len(sequence.token_ids)
            sequence.token_ids.append(token)
        return list(sequence.token_ids[len(prompt) :])

    def regret(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The largest of any of the answer's tokens, each in its own context."""
        sequence = self._sequence([*prompt, *answer[:-1]])
        logits = self._run(Row(sequence, len(sequence.token_ids)))[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        return float((logits.max(dim=1).values - chosen).max())

    @torch.inference_mode()
    def _run(self, row: Row) -> torch.Tensor:
        return self._runner.run([row], every_token=True)

    def _sequence(self, tokens: Sequence[int]) -> SequenceState:
        new = NewSequence(0, list(tokens), len(tokens), 0, list(range(self._num_blocks)), SamplingParams(temperature=0))
        return SequenceState.start(new)
