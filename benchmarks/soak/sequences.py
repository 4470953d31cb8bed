"""Puts the responses of one request together to its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.soak.sampling import is_ranked
from octavo.v1 import common_pb2, inference_pb2


@dataclass
class SequenceAnswer:
    """One of the n sequences of a request, as far as it came."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    finish_reason: int = common_pb2.FINISH_REASON_UNSPECIFIED
    score: float | None = None

    @property
    def finished(self) -> bool:
        """Whether its last response has come."""
        return self.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED


@dataclass
class Assembled:
    """All sequences of a request.

    Attributes:
        sequences: By index.
        usage: From the last response, or None.
        progress: How far the prompt was computed, as often as the answer said so.
        problems: What is wrong with how the responses fit together, each in one line.
    """

    sequences: list[SequenceAnswer]
    usage: common_pb2.Usage | None = None
    progress: list[inference_pb2.PrefillProgress] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def assemble(request: inference_pb2.GenerateRequest, responses: Sequence[inference_pb2.GenerateResponse]) -> Assembled:
    """Joins responses by sequence and checks that each one continues the one before."""
    result = Assembled([SequenceAnswer() for _ in range(request.sampling.n or 1)])
    request_ids = {response.request_id for response in responses} | set(filter(None, [request.request_id]))
    if responses and (len(request_ids) != 1 or "" in request_ids):
        result.problems.append(f"responses have the request ids {sorted(request_ids)}")
    for number, response in enumerate(responses):
        add = _add_progress if response.HasField("progress") else _add
        for problem in add(result, request, response):
            result.problems.append(f"response {number}: {problem}")
    return result


def _add_progress(
    result: Assembled, request: inference_pb2.GenerateRequest, response: inference_pb2.GenerateResponse
) -> list[str]:
    result.progress.append(response.progress)
    problems = []
    if not request.report_progress:
        problems.append("progress, which was not asked for")
    if {each.name for each, _ in response.ListFields()} != {"request_id", "progress"}:
        problems.append("progress comes with something else")
    if any(sequence.token_ids or sequence.finished for sequence in result.sequences):
        problems.append("progress after the first token")
    return problems


def _add(
    result: Assembled, request: inference_pb2.GenerateRequest, response: inference_pb2.GenerateResponse
) -> list[str]:
    if not 0 <= response.sequence_index < len(result.sequences):
        return [f"sequence {response.sequence_index} of {len(result.sequences)}"]
    sequence = result.sequences[response.sequence_index]
    problems = []
    if result.usage is not None:
        problems.append("comes after the one with the usage")
    if sequence.finished:
        problems.append(f"comes after the end of sequence {response.sequence_index}")
    if response.position != len(sequence.token_ids):
        problems.append(f"position {response.position} after {len(sequence.token_ids)} tokens")
    if not response.token_ids and not response.finish_reason:
        problems.append("says nothing")
    wanted = len(response.token_ids) if request.sampling.HasField("logprobs") else 0
    if len(response.logprobs) != wanted:
        problems.append(f"{len(response.logprobs)} log probabilities, expected {wanted}")
    ranked = is_ranked(request.sampling)
    if ranked and not response.finish_reason:
        problems.append("a part of a ranked sequence")
    if response.HasField("score") != ranked:
        problems.append("no score" if ranked else "a score, though nothing is ranked")
    sequence.token_ids.extend(response.token_ids)
    sequence.text += response.text
    sequence.logprobs.extend(response.logprobs)
    sequence.finish_reason = response.finish_reason
    sequence.score = response.score if response.HasField("score") else None
    if response.HasField("usage"):
        result.usage = response.usage
    return problems
