"""The soak's judge finds answers that do not fit together; right ones pass."""

from collections.abc import Sequence

import grpc
import pytest

from benchmarks.soak.checks import LATEST_SECONDS, check_assembled, check_outcome, check_sequence, find_stop
from benchmarks.soak.client import Answer
from benchmarks.soak.prefix_match import check_prefix_match
from benchmarks.soak.sequences import SequenceAnswer, assemble
from benchmarks.soak.workload import Kind, Planned
from octavo.client import OctavoError, Segment, generate_request
from octavo.v1 import common_pb2, inference_pb2

STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
EOS = 2


class Letters:
    """Token 97 is "a" and so on; EOS is special; 200 and 201 are the halves of "é"."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        pieces = {EOS: b"" if skip_special_tokens else b"<end>", 200: b"\xc3", 201: b"\xa9"}
        return b"".join(pieces.get(token, bytes([token])) for token in token_ids).decode("utf-8", "replace")


def request(**sampling: object) -> inference_pb2.GenerateRequest:
    return generate_request("hello", request_id="r", sampling={"max_tokens": 5, **sampling})


def problems(
    text: str, token_ids: Sequence[int], reason: int, wanted: inference_pb2.GenerateRequest | None = None
) -> list[str]:
    sequence = SequenceAnswer(list(token_ids), text, finish_reason=reason)
    return check_sequence(wanted or request(), sequence, Letters(), {EOS})


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("text", "token_ids", "reason", "wanted"),
    [
        ("abcde", ids("abcde"), LENGTH, request()),
        ("ab", [*ids("ab"), EOS], STOP, request()),
        ("ab<end>", [*ids("ab"), EOS], STOP, request(skip_special_tokens=False)),
        ("abc", ids("abc"), STOP, request(stop_token_ids=[ord("c")])),
        ("ab", ids("abcd"), STOP, request(stop=["cd", "zz"])),
        ("a", ids("abcd"), STOP, request(stop=["cd", "bcd"])),
        ("abc", [*ids("ab"), EOS, ord("c"), EOS], LENGTH, request(ignore_eos=True)),
        ("abcd\ufffd", [*ids("abcd"), 200], LENGTH, request()),
        ("é", [200, 201, EOS], STOP, request()),
    ],
)
def test_right_answers_pass(
    text: str, token_ids: list[int], reason: int, wanted: inference_pb2.GenerateRequest
) -> None:
    assert problems(text, token_ids, reason, wanted) == []


@pytest.mark.parametrize(
    ("text", "token_ids", "reason", "wanted"),
    [
        ("abcdef", ids("abcdef"), LENGTH, request()),  # too long
        ("abc", ids("abc"), LENGTH, request()),  # too short
        ("abc", ids("abc"), STOP, request()),  # no stop in it
        ("abcdX", ids("abcde"), LENGTH, request()),  # other text
        ("abcd", ids("abcd"), STOP, request(stop=["cd"])),  # stop string not cut off
        ("ab", ids("abcde"), STOP, request(stop=["cd"])),  # a token too late
        ("abcd", [97, 98, EOS, 99, 100], LENGTH, request()),  # past the end of sequence
        ("a", [97, EOS], STOP, request(min_tokens=3)),  # too early
        ("ab", [97, 98, EOS], LENGTH, request()),  # for another reason
    ],
)
def test_wrong_answers_are_found(
    text: str, token_ids: list[int], reason: int, wanted: inference_pb2.GenerateRequest
) -> None:
    assert problems(text, token_ids, reason, wanted)


@pytest.mark.parametrize(("text", "fine"), [("abc", True), ("ab", True), ("a", False), ("abcx", False)])
def test_an_unfinished_text_may_lack_only_what_could_become_a_stop_string(text: str, fine: bool) -> None:
    assert (problems(text, ids("abc"), 0, request(stop=["cz"])) == []) == fine


def test_an_unfinished_text_may_lack_half_a_character() -> None:
    assert problems("ab", [97, 98, 200], 0) == []


@pytest.mark.parametrize(
    ("text", "stops", "begin"), [("abcabc", ["c", "ab"], 0), ("xyz", ["yz", "z", "xyz"], 0), ("xyz", ["a"], None)]
)
def test_the_stop_string_that_is_complete_first_counts(text: str, stops: list[str], begin: int | None) -> None:
    assert find_stop(text, stops) == begin


def response(position: int, text: str, index: int = 0, **fields: object) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        request_id="r", sequence_index=index, position=position, token_ids=ids(text), text=text, **fields
    )


USAGE = common_pb2.Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3)


def judged(responses: list[inference_pb2.GenerateResponse], prompt_tokens: int = 7, n: int = 1) -> list[str]:
    planned = Planned(0, Kind.COMPLETE, request(n=n))
    answer = Answer(planned, responses)
    return check_assembled(answer, assemble(planned.request, responses), prompt_tokens)


def test_responses_that_continue_one_another_pass() -> None:
    assert judged([response(0, "ab"), response(2, "cde", finish_reason=LENGTH, usage=USAGE)]) == []
    two = [response(0, "ab", 1), response(0, "abc", 0, finish_reason=STOP)]
    assert judged([*two, response(2, "", 1, finish_reason=LENGTH, usage=USAGE)], n=2) == []


@pytest.mark.parametrize(
    "responses",
    [
        [response(0, "ab"), response(3, "cde", finish_reason=LENGTH, usage=USAGE)],  # a gap
        [response(0, "abc"), response(2, "cd", finish_reason=LENGTH, usage=USAGE)],  # a repeat
        [response(0, "abcde", usage=USAGE)],  # no end
        [response(0, "abcde", finish_reason=LENGTH)],  # no usage
        [response(0, "abcd", finish_reason=LENGTH, usage=USAGE)],  # other counts
        [response(0, "abcde", 1, finish_reason=LENGTH, usage=USAGE)],  # no such sequence
        [response(0, "abcde", finish_reason=LENGTH, usage=USAGE), response(5, "f", finish_reason=STOP)],
        [response(0, ""), response(0, "abcde", finish_reason=LENGTH, usage=USAGE)],  # says nothing
        [],
    ],
)
def test_responses_that_do_not_fit_together_are_found(responses: list[inference_pb2.GenerateResponse]) -> None:
    assert judged(responses)


def test_usage_is_compared_with_the_prompt() -> None:
    whole = [response(0, "abcde", finish_reason=LENGTH, usage=USAGE)]
    assert judged(whole) == []
    assert judged(whole, prompt_tokens=8)
    assert judged(whole, prompt_tokens=3)


def outcome(planned: Planned, status: grpc.StatusCode | None, seconds: float, field: str = "") -> list[str]:
    error = None if status is None else OctavoError(status, "", field=field)
    return check_outcome(Answer(planned, error=error, seconds=seconds))


def test_a_deadline_is_met_neither_before_its_time_nor_without_one() -> None:
    with_deadline = Planned(0, Kind.DEADLINE, request(), deadline=2.0)
    exceeded = grpc.StatusCode.DEADLINE_EXCEEDED
    assert outcome(with_deadline, exceeded, 2.1) == []
    assert outcome(with_deadline, None, 1.0) == []
    assert outcome(with_deadline, exceeded, 1.9)
    assert outcome(with_deadline, exceeded, 2.1 + LATEST_SECONDS)
    assert outcome(with_deadline, grpc.StatusCode.UNAVAILABLE, 1.0)
    assert outcome(Planned(0, Kind.COMPLETE, request()), exceeded, 100.0)


def test_an_invalid_request_is_refused_as_expected() -> None:
    planned = Planned(0, Kind.INVALID, request(n=0), status="INVALID_ARGUMENT", field="sampling.n")
    assert outcome(planned, grpc.StatusCode.INVALID_ARGUMENT, 0.1, "sampling.n") == []
    assert outcome(planned, grpc.StatusCode.INVALID_ARGUMENT, 0.1, "sampling.top_k")
    assert outcome(planned, grpc.StatusCode.NOT_FOUND, 0.1, "sampling.n")
    assert outcome(planned, None, 0.1)


def progress(computed: int, prompt: int = 7) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        request_id="r", progress=inference_pb2.PrefillProgress(computed_tokens=computed, prompt_tokens=prompt)
    )


def judged_progress(responses: list[inference_pb2.GenerateResponse], asked: bool = True) -> list[str]:
    wanted = request()
    wanted.report_progress = asked
    answer = Answer(Planned(0, Kind.COMPLETE, wanted), responses)
    return check_assembled(answer, assemble(wanted, responses), 7)


WHOLE = response(0, "abcde", finish_reason=LENGTH, usage=USAGE)


def test_progress_to_the_end_of_the_prompt_passes() -> None:
    assert judged_progress([progress(3), progress(5), progress(7), WHOLE]) == []
    assert judged_progress([WHOLE], asked=False) == []


@pytest.mark.parametrize(
    "responses",
    [
        [WHOLE],  # there is none
        [progress(3), WHOLE],  # not to the end
        [progress(5), progress(3), progress(7), WHOLE],
        [progress(7), progress(7), WHOLE],
        [progress(8), WHOLE],
        [progress(7, prompt=8), WHOLE],
        [progress(5), response(0, "ab"), progress(7), response(2, "cde", finish_reason=LENGTH, usage=USAGE)],
    ],
)
def test_wrong_progress_is_found(responses: list[inference_pb2.GenerateResponse]) -> None:
    assert judged_progress(responses)


def test_progress_that_nobody_asked_for_is_found() -> None:
    assert judged_progress([progress(7), WHOLE], asked=False)


def ranked(*answers: tuple[str, float], **sampling: object) -> list[str]:
    usage = common_pb2.Usage(prompt_tokens=7, completion_tokens=sum(len(text) for text, _ in answers))
    responses = [
        response(0, text, index, finish_reason=LENGTH, score=score) for index, (text, score) in enumerate(answers)
    ]
    responses[-1].usage.CopyFrom(usage)
    return judged_request(request(n=len(answers), **sampling), responses)


def judged_request(wanted: inference_pb2.GenerateRequest, responses: list[inference_pb2.GenerateResponse]) -> list[str]:
    answer = Answer(Planned(0, Kind.COMPLETE, wanted), responses)
    return check_assembled(answer, assemble(wanted, responses), 7)


def test_ranked_sequences_come_best_first() -> None:
    assert ranked(("abcde", -1.0), ("abcdf", -1.0), ("abcdg", -2.0), beam_width=4) == []
    assert ranked(("abcde", -1.0), ("abcde", -2.0), best_of=4) == []
    assert ranked(("abcde", -2.0), ("abcdf", -1.0), best_of=4)
    assert ranked(("abcde", -2.0), ("abcdf", -1.0), beam_width=4)


def test_equal_beams_are_found() -> None:
    assert ranked(("abcde", -1.0), ("abcde", -1.0), beam_width=4)


def test_scores_come_with_whole_sequences_and_only_where_there_is_a_ranking() -> None:
    with_score = response(0, "abcde", finish_reason=LENGTH, usage=USAGE, score=-1.0)
    assert judged_request(request(best_of=2), [with_score]) == []
    assert judged_request(request(), [with_score])
    assert judged_request(request(best_of=2), [WHOLE])
    parts = [response(0, "ab"), response(2, "cde", finish_reason=LENGTH, usage=USAGE, score=-1.0)]
    assert judged_request(request(best_of=2), parts)


NEVER, EVICTED, OTHER, PARTIAL, LAST = (
    common_pb2.PREFIX_MATCH_END_NEVER_SEEN,
    common_pb2.PREFIX_MATCH_END_EVICTED,
    common_pb2.PREFIX_MATCH_END_OTHER_SCOPE,
    common_pb2.PREFIX_MATCH_END_PARTIAL_BLOCK,
    common_pb2.PREFIX_MATCH_END_LAST_TOKEN,
)


def match(prompt: int, cached: int, end: int, alone: bool = True, **fields: object) -> list[str]:
    usage = common_pb2.Usage(prompt_tokens=prompt, cached_tokens=cached, prefix_match_end=end)
    return check_prefix_match(generate_request("hello", **fields), usage, 16, alone)


@pytest.mark.parametrize(
    ("prompt", "cached", "end"),
    [
        (40, 0, NEVER),
        (40, 16, EVICTED),
        (40, 21, NEVER),  # a part of a block was copied
        (40, 16, OTHER),
        (40, 32, PARTIAL),
        (40, 36, PARTIAL),
        (40, 39, LAST),
        (48, 32, LAST),
        (48, 47, LAST),
        (5, 0, PARTIAL),
    ],
)
def test_prefix_matches_that_can_be_pass(prompt: int, cached: int, end: int) -> None:
    assert match(prompt, cached, end) == []


@pytest.mark.parametrize(
    ("prompt", "cached", "end"),
    [
        (40, 40, LAST),
        (40, 32, LAST),
        (48, 16, LAST),
        (40, 16, PARTIAL),
        (48, 32, PARTIAL),
        (40, 39, PARTIAL),
        (40, 32, NEVER),
        (40, 39, EVICTED),
        (40, 0, common_pb2.PREFIX_MATCH_END_UNSPECIFIED),
    ],
)
def test_prefix_matches_that_contradict_themselves_are_found(prompt: int, cached: int, end: int) -> None:
    assert match(prompt, cached, end)


def test_others_may_compute_more_than_the_match_found() -> None:
    assert match(40, 32, NEVER, alone=False) == []


def test_what_only_the_request_may_reuse_is_never_cached() -> None:
    assert match(40, 16, NEVER, cache_scope="request")
    assert match(40, 0, NEVER, cache_scope="request") == []
    parts = [Segment([1] * 20, "tenant"), Segment([2] * 20, "request")]
    usage = common_pb2.Usage(prompt_tokens=40, cached_tokens=16, prefix_match_end=NEVER)
    assert check_prefix_match(generate_request(parts), usage, 16, alone=True) == []
    usage.cached_tokens = 18
    assert check_prefix_match(generate_request(parts), usage, 16, alone=True)
