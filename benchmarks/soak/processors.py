"""What penalties and biases make of logits or log probabilities, as the reference sees it.

In the executor's order: logit bias, repetition penalty, presence and frequency penalties, stop tokens masked before
`min_tokens`.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import torch

from octavo.v1 import common_pb2


def repetition_penalty(sampling: common_pb2.SamplingParams) -> float:
    """The request's, or 1."""
    return sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0


def processed(
    rows: torch.Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: common_pb2.SamplingParams,
    stop_token_ids: Collection[int],
) -> torch.Tensor:
    """The rows that choose an output's tokens, each as the tokens before it have it.

    Args:
        rows: [tokens, vocab] in float32; row i chooses output[i].
        prompt: The tokens before the output.
        output: The tokens of one sequence.
        sampling: As the client stated it.
        stop_token_ids: Every token that ends the sequence.
    """
    if not changes_rows(sampling):
        return rows
    rows = rows.clone()
    for position, row in enumerate(rows):
        process(row, prompt, output[:position], sampling, stop_token_ids)
    return rows


def changes_rows(sampling: common_pb2.SamplingParams) -> bool:
    """Whether the request asks for any of it."""
    return bool(
        sampling.logit_bias
        or repetition_penalty(sampling) != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.min_tokens
    )


def process(
    row: torch.Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    sampling: common_pb2.SamplingParams,
    stop_token_ids: Collection[int],
) -> None:
    """Changes the [vocab] values that choose the token after this output, in place."""
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    penalty = repetition_penalty(sampling)
    if penalty != 1:
        seen = torch.tensor(sorted({*prompt, *output}))
        values = row[seen]
        row[seen] = torch.where(values < 0, values * penalty, values / penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(output).items():
            row[token] -= sampling.presence_penalty + count * sampling.frequency_penalty
    if len(output) < sampling.min_tokens and stop_token_ids:
        row[sorted(stop_token_ids)] = float("-inf")
