"""The independent judge: `transformers` with the same weights, its modeling code and its tokenizer.

Teacher-forced: the model reads prompt and answer in one pass, and every token of the answer is compared with what the
logits before it allow. So an answer is checked to its last token even where a near tie made it differ from another.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# OpenMP must not spin. Before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# transformers shows its own progress where ours is.
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from benchmarks.soak.checks import stop_token_ids
from benchmarks.soak.choices import LOGIT_TOLERANCE, allowed
from benchmarks.soak.sequences import SequenceAnswer
from executor.random_stream import uniform
from octavo.v1 import common_pb2, inference_pb2


def _be_quiet() -> None:
    log: Any = transformers_logging
    log.set_verbosity_error()


class ReferenceTokenizer:
    """`transformers`' tokenizer of a GGUF file."""

    def __init__(self, gguf: Path) -> None:
        _be_quiet()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

    def encode(self, prompt: inference_pb2.Prompt) -> list[int]:
        """Token ids of a prompt of any form."""
        if prompt.HasField("tokens"):
            return list(prompt.tokens.token_ids)
        if prompt.HasField("text"):
            return list(self._tokenizer(prompt.text)["input_ids"])
        messages = [{"role": message.role, "content": message.content} for message in prompt.chat.messages]
        return list(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of all tokens at once."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def eos_token_ids(self) -> set[int]:
        """The model's own end-of-sequence tokens."""
        return {self._tokenizer.convert_tokens_to_ids("<|im_end|>")}


@dataclass
class TokenCounts:
    """How much the reference has checked.

    Attributes:
        greedy: Tokens checked against the largest logit.
        seeded: Tokens checked against the cumulative distribution and the random number that the seed gives.
        unseeded: Tokens checked for being among those that were kept.
        logprobs: Log probabilities checked.
        largest_logprob_error: Between a reported log probability and the reference's.
        near_ties: Greedy tokens that are not the reference's own, but as good within the tolerance.
    """

    greedy: int = 0
    seeded: int = 0
    unseeded: int = 0
    logprobs: int = 0
    largest_logprob_error: float = 0.0
    near_ties: int = 0

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class ReferenceModel:
    """`transformers`' model of a GGUF file in float32."""

    def __init__(self, gguf: Path) -> None:
        _be_quiet()
        loader: Any = AutoModelForCausalLM
        self._model = loader.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    def check(
        self,
        request: inference_pb2.GenerateRequest,
        prompt: Sequence[int],
        sequences: Sequence[SequenceAnswer],
        eos_token_ids: set[int],
        counts: TokenCounts,
    ) -> list[str]:
        """What is wrong with the tokens and log probabilities of a request's sequences, finished or not."""
        logits = self._logits(prompt, [sequence.token_ids for sequence in sequences])
        problems = []
        for index, sequence in enumerate(sequences):
            if sequence.token_ids:
                rows = logits[tuple(sequence.token_ids)]
                found = _check_logprobs(sequence, request.sampling, rows, counts)
                found += _check_tokens(index, sequence, request.sampling, rows, eos_token_ids, counts)
                problems += [f"sequence {index}: {problem}" for problem in found]
        return problems

    def _logits(
        self, prompt: Sequence[int], answers: Sequence[Sequence[int]]
    ) -> Mapping[tuple[int, ...], torch.Tensor]:
        """The logits that precede each token of each answer, [tokens, vocab]; equal answers are computed once."""
        different = sorted({tuple(answer) for answer in answers if answer})
        if not different:
            return {}
        longest = max(map(len, different))
        # Padding at the end changes nothing before it: attention is causal.
        rows = [[*prompt, *answer, *[0] * (longest - len(answer))] for answer in different]
        positions = torch.arange(len(prompt) - 1, len(prompt) - 1 + longest)
        with torch.inference_mode():
            logits = self._model(torch.tensor(rows), logits_to_keep=positions, use_cache=False).logits
        return {answer: logits[index, : len(answer)] for index, answer in enumerate(different)}


def _check_tokens(
    index: int,
    sequence: SequenceAnswer,
    sampling: common_pb2.SamplingParams,
    logits: torch.Tensor,
    eos_token_ids: set[int],
    counts: TokenCounts,
) -> list[str]:
    """The first token of the index-th sequence that could not be chosen where it was."""
    num_tokens = len(sequence.token_ids)
    if sampling.min_tokens:
        logits = logits.clone()
        logits[: sampling.min_tokens, sorted(stop_token_ids(sampling, eos_token_ids))] = float("-inf")
    uniforms = None
    if sampling.HasField("temperature") and sampling.temperature == 0:
        counts.greedy += num_tokens
        counts.near_ties += int((logits.argmax(-1) != torch.tensor(sequence.token_ids)).sum())
    elif sampling.HasField("seed"):
        counts.seeded += num_tokens
        uniforms = [uniform(sampling.seed, index, position) for position in range(num_tokens)]
    else:
        counts.unseeded += num_tokens
    for position, fine in enumerate(allowed(logits, sequence.token_ids, sampling, uniforms)):
        if not fine:
            token, best = sequence.token_ids[position], int(logits[position].argmax())
            behind = float(logits[position, best] - logits[position, token])
            return [f"token {token} at {position} of {num_tokens} is wrong, {behind:.4f} behind the likeliest, {best}"]
    return []


def _check_logprobs(
    sequence: SequenceAnswer, sampling: common_pb2.SamplingParams, logits: torch.Tensor, counts: TokenCounts
) -> list[str]:
    """The first position whose log probabilities are not those of the reference."""
    if not sampling.HasField("logprobs"):
        return []
    reference = torch.log_softmax(logits.double(), dim=-1)
    for position, reported in enumerate(sequence.logprobs):
        row = reference[position]
        top_ids, top_logprobs = list(reported.top_token_ids), list(reported.top_logprobs)
        if not len(set(top_ids)) == len(top_logprobs) == sampling.logprobs:
            return [f"the {sampling.logprobs} most likely tokens at {position} are {top_ids}"]
        # Those of the chosen token and of the named ones, and that these are the most likely ones, in order.
        pairs = [(reported.logprob, row[sequence.token_ids[position]])]
        pairs += [(logprob, row[token]) for logprob, token in zip(top_logprobs, top_ids, strict=True)]
        pairs += zip(top_logprobs, row.topk(sampling.logprobs).values, strict=True)
        error = max(abs(logprob - float(right)) for logprob, right in pairs)
        counts.logprobs += len(pairs)
        counts.largest_logprob_error = max(counts.largest_logprob_error, error)
        if error > 2 * LOGIT_TOLERANCE:
            return [f"log probabilities at {position} are off by {error:.4f}"]
    return []
