"""Judges whole answers: without the model first, then every token with it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.soak.checks import check_assembled, check_outcome, check_sequence, skip_special_tokens
from benchmarks.soak.client import Answer
from benchmarks.soak.judge import SCORE_TOLERANCE, Judge, TokenCounts
from benchmarks.soak.prefix_match import check_prefix_match
from benchmarks.soak.reference import ReferenceModel, ReferenceTokenizer
from benchmarks.soak.sequences import SequenceAnswer, assemble
from benchmarks.soak.workload import Kind
from octavo.v1 import common_pb2, inference_pb2


@dataclass
class Verified:
    """How much was checked.

    Attributes:
        requests: Answers.
        sequences: Sequences with a token at least.
        stop_strings: Texts that ended with one.
        progress: Responses that told of the prompt.
        rankings: Answers with the best of several sequences that were compared with all of these.
        prefix_match_ends: How often prefix matches ended for which reason.
        tokens: What the reference has checked.
    """

    requests: int = 0
    sequences: int = 0
    stop_strings: int = 0
    progress: int = 0
    rankings: int = 0
    prefix_match_ends: Counter[str] = field(default_factory=Counter)
    tokens: TokenCounts = field(default_factory=TokenCounts)

    @classmethod
    def sum(cls, parts: Sequence["Verified"]) -> "Verified":
        """What several verifiers have checked together."""
        total = cls()
        for part in parts:
            for name in ("requests", "sequences", "stop_strings", "progress", "rankings"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.prefix_match_ends += part.prefix_match_ends
            total.tokens.add(part.tokens)
        return total

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        names = ("requests", "sequences", "stop_strings", "progress", "rankings")
        counts = {name: getattr(self, name) for name in names}
        return {**counts, "prefix_match_ends": dict(self.prefix_match_ends), **asdict(self.tokens)}


class Verifier:
    """Checks answers one by one and counts what was checked.

    Args:
        tokenizer: The reference's; no other thread uses it meanwhile.
        model: The reference.
        block_size: Tokens in a block.
        most_searches: Beam searches to do again with `transformers`.
    """

    def __init__(
        self, tokenizer: ReferenceTokenizer, model: ReferenceModel, block_size: int, most_searches: int
    ) -> None:
        self._block_size = block_size
        self._tokenizer = tokenizer
        self._eos_token_ids = self._tokenizer.eos_token_ids
        self._judge = Judge(model, self._eos_token_ids, most_searches)
        self.verified = Verified(tokens=self._judge.counts)

    def check(self, answer: Answer, alone: bool) -> list[str]:
        """Everything that is wrong with an answer; empty where it is right.

        Args:
            answer: To one request.
            alone: Nothing else ran.
        """
        problems = check_outcome(answer)
        self.verified.requests += 1
        if answer.planned.kind is Kind.INVALID:
            return problems
        request = answer.planned.request
        prompt = self._tokenizer.encode(request.prompt)
        assembled = assemble(request, answer.responses)
        problems += check_assembled(answer, assembled, len(prompt))
        self.verified.progress += len(assembled.progress)
        if assembled.usage is not None:
            problems += check_prefix_match(request, assembled.usage, self._block_size, alone)
            end = common_pb2.PrefixMatchEnd.Name(assembled.usage.prefix_match_end)
            self.verified.prefix_match_ends[end.removeprefix("PREFIX_MATCH_END_").lower()] += 1
        for index, sequence in enumerate(assembled.sequences):
            found = check_sequence(request, sequence, self._tokenizer, self._eos_token_ids)
            problems += [f"sequence {index}: {problem}" for problem in found]
            self._count(request, sequence)
        return problems + self._judge.check(request, prompt, assembled.sequences)

    def check_best(self, best: Answer, expanded: Answer) -> list[str]:
        """Whether the best of several sequences are those with the highest mean log probabilities of all of them.

        Args:
            best: To a request with `best_of`.
            expanded: To the same request for all sequences.
        """
        if expanded.error is not None:
            return []  # that is said elsewhere
        every = _outputs(expanded)
        means = self._judge.mean_logprobs(self._tokenizer.encode(best.planned.request.prompt), every)
        found = _outputs(best)
        if any(output not in every for output in found):
            return [f"the best are {found}, all of them are {every}"]
        worst = min(means[every.index(output)] for output in found)
        ranked = sorted(means, reverse=True)
        self.verified.rankings += 1
        if worst < ranked[len(found) - 1] - SCORE_TOLERANCE:
            return [f"the best {len(found)} go down to {worst:.5f}, of {ranked}"]
        return []

    def _count(self, request: inference_pb2.GenerateRequest, sequence: SequenceAnswer) -> None:
        self.verified.sequences += bool(sequence.token_ids)
        # A stop string ends a text before its tokens do.
        whole = self._tokenizer.decode(sequence.token_ids, skip_special_tokens(request.sampling))
        self.verified.stop_strings += sequence.finished and sequence.text != whole


def _outputs(answer: Answer) -> Sequence[list[int]]:
    return [sequence.token_ids for sequence in assemble(answer.planned.request, answer.responses).sequences]
