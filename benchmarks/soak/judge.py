"""Judges the tokens of an answer by the reference's logits.

Teacher-forced: the reference reads prompt and answer in one pass, and every token of the answer is compared with what
the logits before it allow. So an answer is checked to its last token even where a near tie made it differ from another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from benchmarks.soak.beam_reference import length_penalty
from benchmarks.soak.checks import stop_token_ids
from benchmarks.soak.choices import LOGIT_TOLERANCE, allowed
from benchmarks.soak.processors import changes_rows, processed, repetition_penalty
from benchmarks.soak.reference import ReferenceModel
from benchmarks.soak.sampling import is_ranked
from benchmarks.soak.sequences import SequenceAnswer
from executor.sampling.random_stream import uniform
from octavo.v1 import common_pb2, inference_pb2

SCORE_TOLERANCE = 1e-3
# Beams that differ from `transformers`' are right where a choice was closer than this.
_NEAR_TIE = 5e-4
# A search by `transformers` takes seconds where the prompt is long or the beams are.
_CHEAP_PROMPT, _CHEAP_TOKENS = 120, 130


@dataclass
class TokenCounts:
    """How much the reference has checked.

    Attributes:
        greedy: Tokens checked against the largest logit.
        seeded: Tokens checked against the cumulative distribution and the random number that the seed gives.
        unseeded: Tokens checked for being among those that were kept.
        penalised: Those of them that were chosen after penalties, a bias or a mask.
        logprobs: Log probabilities checked.
        largest_logprob_error: Between a reported log probability and the reference's.
        near_ties: Greedy tokens that are not the reference's own, but as good within the tolerance.
        beams: Beams whose scores were checked.
        best_of: Sequences that were chosen among several, whose scores were checked.
        largest_score_error: Between a reported score and the reference's.
        searches: Beam searches that `transformers` did too, with the same beams.
        search_near_ties: Those where both differ, and some choice was too close to call.
    """

    greedy: int = 0
    seeded: int = 0
    unseeded: int = 0
    penalised: int = 0
    logprobs: int = 0
    largest_logprob_error: float = 0.0
    near_ties: int = 0
    beams: int = 0
    best_of: int = 0
    largest_score_error: float = 0.0
    searches: int = 0
    search_near_ties: int = 0

    def add(self, other: "TokenCounts") -> None:
        """Adds what somebody else has checked."""
        for each in fields(self):
            mine, others = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, others) if each.name.startswith("largest") else mine + others)


class Judge:
    """Judges answers one by one and counts.

    Args:
        model: The reference.
        eos_token_ids: The model's own.
        most_searches: Beam searches to do again with `transformers`.
    """

    def __init__(self, model: ReferenceModel, eos_token_ids: set[int], most_searches: int) -> None:
        self._model = model
        self._eos_token_ids = eos_token_ids
        self._most_searches = most_searches
        self.counts = TokenCounts()

    def check(
        self, request: inference_pb2.GenerateRequest, prompt: Sequence[int], sequences: Sequence[SequenceAnswer]
    ) -> list[str]:
        """What is wrong with the tokens, log probabilities and scores of a request's sequences, finished or not."""
        sampling = request.sampling
        stops = stop_token_ids(sampling, self._eos_token_ids)
        logits = self._model.logits(prompt, [sequence.token_ids for sequence in sequences])
        streams = _Streams(sampling)
        problems = []
        for index, sequence in enumerate(sequences):
            if not sequence.token_ids:
                continue
            rows = logits[tuple(sequence.token_ids)]
            if sampling.HasField("beam_width"):
                found = self._check_beam(sequence, sampling, rows, prompt, stops)
            else:
                choosing = processed(rows, prompt, sequence.token_ids, sampling, stops)
                found = self._check_logprobs(sequence, sampling, rows)
                found += self._check_tokens(streams.of(index), sequence, sampling, choosing, streams)
                if is_ranked(sampling):
                    self.counts.best_of += 1
                    found += self._check_score(sequence, _mean_logprob(rows, sequence.token_ids))
            problems += [f"sequence {index}: {problem}" for problem in found]
        if sampling.HasField("beam_width") and all(sequence.finished for sequence in sequences):
            problems += self._check_search(sampling, prompt, sequences, stops)
        return problems

    def mean_logprobs(self, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[float]:
        """The mean log probability of each answer's tokens."""
        logits = self._model.logits(prompt, answers)
        return [_mean_logprob(logits[tuple(answer)], answer) for answer in answers]

    def _check_tokens(
        self,
        candidates: Sequence[int],
        sequence: SequenceAnswer,
        sampling: common_pb2.SamplingParams,
        logits: torch.Tensor,
        streams: "_Streams",
    ) -> list[str]:
        """The first token that could not be chosen where it was, by any of the candidates' random numbers."""
        num_tokens = len(sequence.token_ids)
        self._count_tokens(sequence.token_ids, sampling, logits)
        tolerance = LOGIT_TOLERANCE * max(repetition_penalty(sampling), 1 / repetition_penalty(sampling))
        verdicts = {}
        for number in candidates:
            uniforms = streams.uniforms(number, num_tokens)
            verdicts[number] = allowed(logits, sequence.token_ids, sampling, uniforms, tolerance)
            if all(verdicts[number]):
                streams.take(number)
                return []
        if not verdicts:
            return ["no sample is left that it could be"]
        # The one that gets furthest says most.
        position = max(verdict.index(False) for verdict in verdicts.values())
        token, best = sequence.token_ids[position], int(logits[position].argmax())
        behind = float(logits[position, best] - logits[position, token])
        return [f"token {token} at {position} of {num_tokens} is wrong, {behind:.4f} behind the likeliest, {best}"]

    def _count_tokens(
        self, token_ids: Sequence[int], sampling: common_pb2.SamplingParams, logits: torch.Tensor
    ) -> None:
        counts, num_tokens = self.counts, len(token_ids)
        counts.penalised += num_tokens if changes_rows(sampling) else 0
        if _is_greedy(sampling):
            counts.greedy += num_tokens
            counts.near_ties += int((logits.argmax(-1) != torch.tensor(token_ids)).sum())
        elif sampling.HasField("seed"):
            counts.seeded += num_tokens
        else:
            counts.unseeded += num_tokens

    def _check_logprobs(
        self, sequence: SequenceAnswer, sampling: common_pb2.SamplingParams, logits: torch.Tensor
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
            self.counts.logprobs += len(pairs)
            self.counts.largest_logprob_error = max(self.counts.largest_logprob_error, error)
            if error > 2 * LOGIT_TOLERANCE:
                return [f"log probabilities at {position} are off by {error:.4f}"]
        return []

    def _check_score(self, sequence: SequenceAnswer, expected: float) -> list[str]:
        if sequence.score is None:
            return []  # that there is none was said already
        error = abs(sequence.score - expected)
        self.counts.largest_score_error = max(self.counts.largest_score_error, error)
        return [f"score is {sequence.score:.5f}, expected {expected:.5f}"] if not error <= SCORE_TOLERANCE else []

    def _check_beam(
        self,
        sequence: SequenceAnswer,
        sampling: common_pb2.SamplingParams,
        logits: torch.Tensor,
        prompt: Sequence[int],
        stops: set[int],
    ) -> list[str]:
        """Penalties act on log probabilities there."""
        self.counts.beams += 1
        token_ids = sequence.token_ids
        logprobs = processed(torch.log_softmax(logits, dim=-1), prompt, token_ids, sampling, stops)
        total = float(logprobs.double().gather(-1, torch.tensor(token_ids)[:, None]).sum())
        return self._check_score(sequence, total / len(token_ids) ** length_penalty(sampling))

    def _check_search(
        self,
        sampling: common_pb2.SamplingParams,
        prompt: Sequence[int],
        sequences: Sequence[SequenceAnswer],
        stops: set[int],
    ) -> list[str]:
        """Whether `transformers` finds the same beams, where it does so quickly."""
        counts = self.counts
        work = sampling.max_tokens * sampling.beam_width
        if len(prompt) > _CHEAP_PROMPT or not 10 <= work <= _CHEAP_TOKENS:
            return []
        if counts.searches + counts.search_near_ties >= self._most_searches:
            return []
        found = self._model.search(prompt, sampling, stops)
        beams = [sequence.token_ids for sequence in sequences]
        if beams == found.beams:
            counts.searches += 1
            return []
        counts.search_near_ties += 1
        if found.margin < _NEAR_TIE:
            return []
        return [f"beams are {beams}, transformers' {found.beams}, its closest choice was clear by {found.margin:.5f}"]


class _Streams:
    """Which of a request's streams of random numbers may have decided a sequence.

    That of its own index, where sequences are not ranked. Otherwise any that decided none of the others.
    """

    def __init__(self, sampling: common_pb2.SamplingParams) -> None:
        self._seed = sampling.seed if sampling.HasField("seed") and not _is_greedy(sampling) else None
        self._left = list(range(sampling.best_of)) if is_ranked(sampling) and self._seed is not None else None

    def of(self, index: int) -> Sequence[int]:
        """The candidates for the index-th sequence."""
        return [index] if self._left is None else list(self._left)

    def take(self, number: int) -> None:
        """It decided a sequence."""
        if self._left is not None:
            self._left.remove(number)

    def uniforms(self, number: int, num_tokens: int) -> list[float] | None:
        """Its numbers, where they are known."""
        if self._seed is None:
            return None
        return [uniform(self._seed, number, position) for position in range(num_tokens)]


def _is_greedy(sampling: common_pb2.SamplingParams) -> bool:
    return sampling.HasField("temperature") and sampling.temperature == 0


def _mean_logprob(logits: torch.Tensor, token_ids: Sequence[int]) -> float:
    """Of the distribution before penalties, temperature and truncation."""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    return float(logprobs.gather(-1, torch.tensor(list(token_ids))[:, None]).mean())
