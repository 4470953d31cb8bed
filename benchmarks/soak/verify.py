"""Judges whole answers: without the model first, then every token with it."""

from pathlib import Path
from typing import Any

from benchmarks.soak.checks import check_assembled, check_outcome, check_sequence, skip_special_tokens
from benchmarks.soak.client import Answer
from benchmarks.soak.reference import ReferenceModel, ReferenceTokenizer, TokenCounts
from benchmarks.soak.sequences import SequenceAnswer, assemble
from benchmarks.soak.workload import Kind
from octavo.v1 import inference_pb2


class Verifier:
    """Checks answers one by one and counts what was checked."""

    def __init__(self, gguf: Path) -> None:
        """Loads the reference, which takes some seconds."""
        self._tokenizer = ReferenceTokenizer(gguf)
        self._model = ReferenceModel(gguf)
        self._eos_token_ids = self._tokenizer.eos_token_ids
        self._counts = TokenCounts()
        self._requests = 0
        self._sequences = 0
        self._stop_strings = 0

    def check(self, answer: Answer) -> list[str]:
        """Everything that is wrong with an answer; empty where it is right."""
        problems = check_outcome(answer)
        self._requests += 1
        if answer.planned.kind is Kind.INVALID:
            return problems
        request = answer.planned.request
        prompt = self._tokenizer.encode(request.prompt)
        assembled = assemble(request, answer.responses)
        problems += check_assembled(answer, assembled, len(prompt))
        for index, sequence in enumerate(assembled.sequences):
            found = check_sequence(request, sequence, self._tokenizer, self._eos_token_ids)
            problems += [f"sequence {index}: {problem}" for problem in found]
            self._count(request, sequence)
        return problems + self._model.check(request, prompt, assembled.sequences, self._eos_token_ids, self._counts)

    def _count(self, request: inference_pb2.GenerateRequest, sequence: SequenceAnswer) -> None:
        self._sequences += bool(sequence.token_ids)
        # A stop string ends a text before its tokens do.
        whole = self._tokenizer.decode(sequence.token_ids, skip_special_tokens(request.sampling))
        self._stop_strings += sequence.finished and sequence.text != whole

    def summary(self) -> dict[str, Any]:
        """How much was checked."""
        return {
            "requests": self._requests,
            "sequences": self._sequences,
            "stop_strings": self._stop_strings,
            **self._counts.summary(),
        }
