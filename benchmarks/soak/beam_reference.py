"""Beam search by `transformers`, with a note of how clear its choices were."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.soak.processors import process
from octavo.v1 import common_pb2

_EARLY_STOPPING: dict[int, bool | str] = {
    common_pb2.EARLY_STOPPING_UNSPECIFIED: False,
    common_pb2.EARLY_STOPPING_HEURISTIC: False,
    common_pb2.EARLY_STOPPING_FIRST: True,
    common_pb2.EARLY_STOPPING_NEVER: "never",
}


def length_penalty(sampling: common_pb2.SamplingParams) -> float:
    """The request's, or the default."""
    return sampling.length_penalty if sampling.HasField("length_penalty") else 1.0


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        beams: The n best ones, best first.
        margin: By how much the closest of its choices was decided: which beams go on, which may finish, which is best.
    """

    beams: list[list[int]]
    margin: float


def search(
    model: Any, prompt: Sequence[int], sampling: common_pb2.SamplingParams, stop_token_ids: Collection[int]
) -> Searched:
    """Runs `transformers`' search with a request's parameters."""
    width, wanted = sampling.beam_width, sampling.n or 1
    watch = _Processor(prompt, sampling, stop_token_ids)
    ids = torch.tensor([list(prompt)])
    result = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=sampling.max_tokens,
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=length_penalty(sampling),
        early_stopping=_EARLY_STOPPING[sampling.early_stopping],
        eos_token_id=sorted(stop_token_ids) or None,
        logits_processor=LogitsProcessorList([watch]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    lengths = (result.beam_indices >= 0).sum(dim=1).tolist()
    outputs = result.sequences[:, len(prompt) :].tolist()
    gaps = [better - worse for better, worse in pairwise(result.sequences_scores.tolist())]
    beams = [output[:length] for output, length in zip(outputs, lengths, strict=True)]
    return Searched(beams[:wanted], min([watch.margin, *gaps[:wanted]]))


class _Processor(LogitsProcessor):
    """Applies the request's penalties, and sees every choice between continuations."""

    def __init__(
        self, prompt: Sequence[int], sampling: common_pb2.SamplingParams, stop_token_ids: Collection[int]
    ) -> None:
        self.margin = float("inf")
        self._prompt = list(prompt)
        self._sampling = sampling
        self._stops = sorted(stop_token_ids)
        # Sums of log probabilities by output, and what each output's next tokens would add.
        self._sums: dict[tuple[int, ...], float] = {(): 0.0}
        self._added: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        rows = {}
        for ids, row in zip(input_ids.tolist(), scores, strict=True):
            output = ids[len(self._prompt) :]
            process(row, self._prompt, output, self._sampling, self._stops)
            rows[tuple(output)] = row.double()
        if self._added:
            self._sums = {
                output: self._sums[output[:-1]] + float(self._added[output[:-1]][output[-1]]) for output in rows
            }
        self._added = rows
        self._watch(torch.stack([row + self._sums[output] for output, row in rows.items()]), len(next(iter(rows))) + 1)
        return scores

    def _watch(self, sums: torch.Tensor, length: int) -> None:
        """Notes how far the last continuation that counts is from the first that does not."""
        width, last = self._sampling.beam_width, length == self._sampling.max_tokens
        stops = torch.zeros_like(sums, dtype=torch.bool)
        stops[:, self._stops] = True
        best = sums.flatten().topk(width + 1)
        # Who may finish.
        if last or stops.flatten()[best.indices[-2:]].any():
            self._note(best.values)
        # Who goes on.
        if not last:
            self._note(sums[~stops].topk(width + 1).values)

    def _note(self, values: torch.Tensor) -> None:
        self.margin = min(self.margin, float(values[-2] - values[-1]))
