"""What can be said of an answer without the model: how it ended, its text, its counts."""

from collections.abc import Collection, Sequence
from typing import Protocol

from benchmarks.soak.client import Answer
from benchmarks.soak.sampling import is_ranked
from benchmarks.soak.sequences import Assembled, SequenceAnswer
from benchmarks.soak.workload import Kind
from octavo.v1 import common_pb2, inference_pb2

# Two clocks may disagree by so much about when a deadline has come.
_CLOCK_SECONDS = 0.01
# A deadline that is noticed later than this was not kept, however busy the machine.
LATEST_SECONDS = 10.0
# What the bytes of an unfinished character look like.
_REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """Decodes all tokens at once."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of the tokens."""
        ...


def check_outcome(answer: Answer) -> list[str]:
    """Whether the request ended in a way that its kind allows."""
    planned, error = answer.planned, answer.error
    if answer.cancelled:
        return []
    if planned.kind is Kind.INVALID:
        return _check_refusal(answer)
    limit = planned.timeout if planned.deadline is None else planned.deadline
    if error is None:
        if limit is not None and answer.seconds > limit + LATEST_SECONDS:
            return [f"ended well after {answer.seconds:.3f} s, its limit was {limit:.3f} s"]
        return []
    if error.status.name != "DEADLINE_EXCEEDED" or limit is None:
        return [f"failed: {error}"]
    if not limit - _CLOCK_SECONDS <= answer.seconds <= limit + LATEST_SECONDS:
        return [f"DEADLINE_EXCEEDED after {answer.seconds:.3f} s, its limit was {limit:.3f} s"]
    return []


def _check_refusal(answer: Answer) -> list[str]:
    planned, error = answer.planned, answer.error
    if error is None:
        return [f"expected {planned.status} for {planned.field}, got an answer"]
    problems = []
    if (error.status.name, error.field) != (planned.status, planned.field):
        problems.append(f"expected {planned.status} for {planned.field}, got {error}")
    if answer.responses:
        problems.append(f"refused after {len(answer.responses)} responses")
    return problems


def check_assembled(answer: Answer, assembled: Assembled, prompt_tokens: int) -> list[str]:
    """Whether the end and the counts of a request are those of its sequences."""
    problems = list(assembled.problems)
    complete = answer.error is None and not answer.cancelled
    if complete and not all(sequence.finished for sequence in assembled.sequences):
        problems.append("ended before its sequences")
    if complete and assembled.usage is None:
        problems.append("ended without usage")
    usage = assembled.usage
    if usage is not None:
        completion_tokens = sum(len(sequence.token_ids) for sequence in assembled.sequences)
        if (usage.prompt_tokens, usage.completion_tokens) != (prompt_tokens, completion_tokens):
            problems.append(
                f"usage says {usage.prompt_tokens} + {usage.completion_tokens} tokens, "
                f"there are {prompt_tokens} + {completion_tokens}"
            )
    problems += _check_progress(answer, assembled, prompt_tokens)
    if complete and is_ranked(answer.planned.request.sampling):
        problems += _check_ranking(answer.planned.request.sampling, assembled.sequences)
    return problems


def _check_progress(answer: Answer, assembled: Assembled, prompt_tokens: int) -> list[str]:
    """Progress grows, never beyond the prompt, and gets to its end before the answer begins."""
    computed = [each.computed_tokens for each in assembled.progress]
    problems = []
    if any(each.prompt_tokens != prompt_tokens for each in assembled.progress):
        problems.append(f"progress speaks of other prompts than one of {prompt_tokens} tokens")
    if any(later <= earlier for earlier, later in zip([0, *computed], computed, strict=False)):
        problems.append(f"progress does not grow: {computed}")
    if computed and computed[-1] > prompt_tokens:
        problems.append(f"progress of {computed[-1]} in {prompt_tokens} tokens")
    began = any(sequence.token_ids for sequence in assembled.sequences)
    if answer.planned.request.report_progress and began and computed[-1:] != [prompt_tokens]:
        problems.append(f"the answer begins after progress {computed} of {prompt_tokens}")
    return problems


def _check_ranking(sampling: common_pb2.SamplingParams, sequences: Sequence[SequenceAnswer]) -> list[str]:
    """Scores do not rise; beams differ."""
    scores = [sequence.score for sequence in sequences if sequence.score is not None]
    problems = []
    if scores != sorted(scores, reverse=True):
        problems.append(f"scores are not in order: {scores}")
    beams = [tuple(sequence.token_ids) for sequence in sequences]
    if sampling.HasField("beam_width") and len(set(beams)) < len(beams):
        problems.append("two beams are equal")
    return problems


def check_sequence(
    request: inference_pb2.GenerateRequest,
    sequence: SequenceAnswer,
    decoder: Decoder,
    eos_token_ids: Collection[int],
) -> list[str]:
    """Whether text and end of a sequence are those that its tokens give."""
    sampling = request.sampling
    token_ids = sequence.token_ids
    whole = decoder.decode(token_ids, skip_special_tokens(sampling))
    stops = stop_token_ids(sampling, eos_token_ids)
    problems = []
    if len(token_ids) > sampling.max_tokens:
        problems.append(f"{len(token_ids)} tokens, more than {sampling.max_tokens}")
    early = [index for index, token in enumerate(token_ids) if token in stops]
    if early and (early[0] < len(token_ids) - 1 or early[0] < sampling.min_tokens or not sequence.finished):
        problems.append(f"goes on after stop token {token_ids[early[0]]} at {early[0]}")
    if find_stop(decoder.decode(token_ids[:-1], skip_special_tokens(sampling)), sampling.stop) is not None:
        problems.append("goes on after a stop string")
    if not sequence.finished:
        return problems + _check_unfinished_text(sequence.text, whole, sampling.stop)
    expected_text, expected_reason = whole, common_pb2.FINISH_REASON_UNSPECIFIED
    if (stop := find_stop(whole, sampling.stop)) is not None:
        expected_text, expected_reason = whole[:stop], common_pb2.FINISH_REASON_STOP
    elif token_ids and token_ids[-1] in stops:
        expected_reason = common_pb2.FINISH_REASON_STOP
    elif len(token_ids) == sampling.max_tokens:
        expected_reason = common_pb2.FINISH_REASON_LENGTH
    if sequence.finish_reason != expected_reason:
        expected_name = common_pb2.FinishReason.Name(expected_reason)
        problems.append(f"ended with {common_pb2.FinishReason.Name(sequence.finish_reason)}, expected {expected_name}")
    if sequence.text != expected_text:
        problems.append(f"text is {sequence.text!r}, its tokens say {expected_text!r}")
    return problems


def _check_unfinished_text(text: str, whole: str, stops: Sequence[str]) -> list[str]:
    """Only an unfinished character and the beginning of a stop string may be kept back."""
    kept_back = whole[len(text) :].rstrip(_REPLACEMENT)
    if whole.startswith(text) and (not kept_back or any(stop.startswith(kept_back) for stop in stops)):
        return []
    return [f"text so far is {text!r}, its tokens say {whole!r}"]


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string that is completed first begins; of two completed together the longer one counts."""
    found = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not found:
        return None
    end, negative_length = min(found)
    return end + negative_length


def skip_special_tokens(sampling: common_pb2.SamplingParams) -> bool:
    """Whether special tokens have no text in a request's answer."""
    return sampling.skip_special_tokens if sampling.HasField("skip_special_tokens") else True


def stop_token_ids(sampling: common_pb2.SamplingParams, eos_token_ids: Collection[int]) -> set[int]:
    """Every token that ends a sequence of a request."""
    return set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_token_ids))
