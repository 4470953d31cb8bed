"""`python -m benchmarks.beam_statistics --model PATH`: how far back beams part, in a model and in its stand-in.

Runs beam searches on a real model (with `transformers`, stop tokens left out) and on `benchmarks.candidate_model`, and
prints JSON lines: the mean number of tokens since the last one that all beams of a search have in common, the same for
two of them, and the quantiles of the most likely token's probability. The last line is the summary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from statistics import mean, quantiles
from typing import Annotated, Any, Protocol

import typer

from benchmarks.candidate_model import LONG_ANSWERS, SHORT_ANSWERS, BeamProfile, CandidateModel
from kvmanager.beam_search import BeamSearch, Continuation
from kvmanager.spec import BeamParams

Candidates = tuple[list[int], list[float]]

LONG = 250
"""Searches of so many tokens are compared with the stand-in for long answers."""

# fmt: off
PROMPTS = (
    "Explain why the sky looks blue at noon and red in the evening.",
    "Write a short letter to a landlord about a broken heater.",
    "List five things to check before buying a used bicycle.",
    "What is the difference between weather and climate?",
    "Describe the life cycle of a butterfly.",
    "Suggest a title for a story about two brothers who build a boat.",
    "How does a refrigerator keep food cold?",
    "Give me a recipe for a simple vegetable soup.",
    "Summarize the rules of chess for a beginner.",
    "Write a Python function that returns the largest even number of a list.",
    "Who invented the printing press, and what changed because of it?",
    "Compare trains and buses for travelling between two cities.",
)
# fmt: on


class NextTokens(Protocol):
    """Where a search's candidates come from."""

    def first(self, count: int) -> Candidates:
        """Of the prompt."""

    def advance(self, continuations: list[Continuation], count: int) -> list[Candidates]:
        """Of the beams that these continuations lead to."""


class StandIn:
    """`benchmarks.candidate_model`."""

    def __init__(self, profile: BeamProfile, seed: int) -> None:
        self._model = CandidateModel(profile, seed)

    def first(self, count: int) -> Candidates:
        return self._model.draw(None, count)

    def advance(self, continuations: list[Continuation], count: int) -> list[Candidates]:
        self._model.next_step()
        return [self._model.draw(None, count) for _ in continuations]


class RealModel:
    """A model on the CPU, with its keys and values moved as the beams do."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder, gguf = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **gguf)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **gguf)
        # Not all tokenizers say that these are special.
        vocabulary = self._tokenizer.get_vocab().items()
        ends = [number for token, number in vocabulary if token.startswith("<|") and token.endswith("|>")]
        self._banned = sorted({*self._tokenizer.all_special_ids, *ends})
        self._prompt: Any = None
        self._cache: Any = None

    def start(self, prompt: str) -> RealModel:
        """Makes this the prompt of the next search."""
        if self._tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        self._prompt = self._tokenizer(prompt, return_tensors="pt").input_ids
        self._cache = None
        return self

    def first(self, count: int) -> Candidates:
        return self._run(self._prompt, count)[0]

    def advance(self, continuations: list[Continuation], count: int) -> list[Candidates]:
        self._cache.reorder_cache(self._torch.tensor([each.parent for each in continuations]))
        return self._run(self._torch.tensor([[each.token_id] for each in continuations]), count)

    def _run(self, token_ids: Any, count: int) -> list[Candidates]:
        with self._torch.inference_mode():
            out = self._model(token_ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            self._cache = out.past_key_values
            logprobs = out.logits[:, -1].float().log_softmax(-1)
            logprobs[:, self._banned] = float("-inf")
            top = logprobs.topk(count)
        return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


class Statistics:
    """Over searches of one width from one source."""

    def __init__(self) -> None:
        self.since_all: list[int] = []
        self.since_two: list[float] = []
        self.top_logprobs: list[float] = []

    def search(self, source: NextTokens, width: int, num_tokens: int) -> None:
        """Runs one search; counts once half of it is done, when the first tokens matter no more."""
        search = BeamSearch(BeamParams(width), num_tokens + 1, frozenset())
        outputs: list[list[int]] = [[]]
        histories: list[list[int]] = [[]]  # of each beam: for each token a number that only it and its copies have
        candidates = [source.first(search.num_candidates)]
        for length in range(num_tokens):
            continuations = search.advance(outputs, candidates)
            outputs = [[*outputs[each.parent], each.token_id] for each in continuations]
            histories = [[*histories[each.parent], length * width + i] for i, each in enumerate(continuations)]
            candidates = source.advance(continuations, search.num_candidates)
            self.top_logprobs.extend(logprobs[0] for _, logprobs in candidates)
            if length >= num_tokens // 2:
                self.since_all.append(_since_common(histories))
                self.since_two.append(mean(_since_common(pair) for pair in combinations(histories, 2)))

    def line(self) -> dict[str, object]:
        top = quantiles((math.exp(logprob) for logprob in self.top_logprobs), n=8)
        return {
            "tokens_since_all_beams": round(mean(self.since_all), 1),
            "tokens_since_two_beams": round(mean(self.since_two), 1),
            "top_probability_eighths": [round(value, 3) for value in top],
        }


def _since_common(histories: Iterable[list[int]]) -> int:
    """Tokens after the last one that all of them have in common."""
    columns = list(zip(*histories, strict=True))
    return sum(len(set(column)) > 1 for column in columns)


def main(
    model: Annotated[Path, typer.Option(exists=True, help="Model folder or GGUF file.")],
    tokens: Annotated[int, typer.Option(min=2, help="Length of each search.")] = 100,
    prompts: Annotated[int, typer.Option(min=1, max=len(PROMPTS), help="Prompts to search from.")] = len(PROMPTS),
) -> None:
    """Compare the beams of a model with those of its stand-in."""
    real = RealModel(model)
    profile = LONG_ANSWERS if tokens >= LONG else SHORT_ANSWERS
    summary: dict[str, object] = {}
    for width in (2, 4, 6):
        measured, stand_in = Statistics(), Statistics()
        for prompt in PROMPTS[:prompts]:
            measured.search(real.start(prompt), width, tokens)
        for seed in range(24):
            stand_in.search(StandIn(profile, seed), width, tokens)
        for name, statistics in (("model", measured), ("stand_in", stand_in)):
            line = statistics.line()
            print(json.dumps({"beams": width, "source": name, **line}), flush=True)
            summary[f"beam{width}_{name}_since_all"] = line["tokens_since_all_beams"]
            summary[f"beam{width}_{name}_since_two"] = line["tokens_since_two_beams"]
    print(json.dumps(summary))


if __name__ == "__main__":
    typer.run(main)
