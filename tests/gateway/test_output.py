"""Tokens of a sequence become chunks: text, ids, positions, and why it ended."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import DetokenizerFactory
from gateway.errors import PositionGap
from gateway.output import Chunk, FinishReason, RequestOutput, SequenceOutput, TokenLogprobs
from gateway.stop_strings import StopMatcher, StopPattern
from gateway.tokenizer import Tokenizer


def sequence(tokenizer: Tokenizer, *stops: str, min_tokens: int = 0, skip: bool = True) -> SequenceOutput:
    detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=skip)
    return SequenceOutput(detokenizer, StopMatcher([StopPattern.compile(stop) for stop in stops]), min_tokens)


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token for each character."""
    return [tokenizer.encode(character)[0] for character in text]


def test_chunks_carry_ids_text_and_position(byte_level: Tokenizer) -> None:
    output = sequence(byte_level)
    first, second = letters(byte_level, "ab"), letters(byte_level, "c")
    assert output.add(0, first) == Chunk(position=0, token_ids=first, text="ab")
    assert output.add(2, second, finish_reason=FinishReason.LENGTH) == Chunk(
        position=2, token_ids=second, text="c", finish_reason=FinishReason.LENGTH
    )


def test_a_token_without_certain_text_is_sent_at_once(byte_level: Tokenizer) -> None:
    output = sequence(byte_level)
    halves = [byte_level.backend.token_to_id(character) for character in "Ã©"]
    chunks = [output.add(index, [token_id]) for index, token_id in enumerate(halves)]
    assert [chunk and (list(chunk.token_ids), chunk.text) for chunk in chunks] == [
        ([halves[0]], ""),
        ([halves[1]], "é"),
    ]


def test_a_stop_string_ends_the_sequence_here(byte_level: Tokenizer) -> None:
    output = sequence(byte_level, "cd")
    ids = letters(byte_level, "abcdef")
    logprobs = [TokenLogprobs(-float(index)) for index in range(6)]
    assert output.add(0, ids[:3], logprobs[:3]) == Chunk(0, ids[:3], "ab", logprobs[:3])
    assert output.add(3, ids[3:], logprobs[3:]) == Chunk(
        position=3,
        token_ids=ids[3:4],
        text="",
        logprobs=logprobs[3:4],
        finish_reason=FinishReason.STOP,
        ended_here=True,
    )
    assert output.add(6, ids) is None
    assert output.add(90, ids, finish_reason=FinishReason.LENGTH) is None
    assert output.num_tokens == 4


def test_a_stop_string_in_the_backend_s_last_tokens_needs_no_abort(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "abc")
    chunk = sequence(byte_level, "b").add(0, ids, finish_reason=FinishReason.LENGTH)
    assert chunk == Chunk(0, ids[:2], "a", finish_reason=FinishReason.STOP, ended_here=False)


@pytest.mark.parametrize("reason", list(FinishReason))
def test_what_was_kept_back_is_sent_at_the_end(byte_level: Tokenizer, reason: FinishReason) -> None:
    output = sequence(byte_level, "bcd")
    output.add(0, letters(byte_level, "ab"))
    assert output.add(2, [], finish_reason=reason) == Chunk(2, [], "b", finish_reason=reason)


def test_half_a_character_and_half_a_stop_string_are_sent_at_the_end(byte_level: Tokenizer) -> None:
    half = byte_level.backend.token_to_id("Ã")
    output = sequence(byte_level, "b\ufffd\ufffd")
    chunk = output.add(0, [*letters(byte_level, "ab"), half], finish_reason=FinishReason.LENGTH)
    assert chunk is not None
    assert chunk.text == "ab\ufffd"


def test_the_end_token_is_in_the_ids_and_not_in_the_text(byte_level: Tokenizer) -> None:
    ids = [*letters(byte_level, "a"), 2]
    assert sequence(byte_level).add(0, ids, finish_reason=FinishReason.STOP) == Chunk(
        0, ids, "a", finish_reason=FinishReason.STOP
    )
    shown = sequence(byte_level, skip=False).add(0, ids, finish_reason=FinishReason.STOP)
    assert shown is not None
    assert shown.text == "a<|im_end|>"


def test_repeated_tokens_are_dropped(byte_level: Tokenizer) -> None:
    output = sequence(byte_level)
    ids = letters(byte_level, "abcd")
    logprobs = [TokenLogprobs(-float(index)) for index in range(4)]
    output.add(0, ids[:2], logprobs[:2])
    assert output.add(0, ids[:2], logprobs[:2]) is None
    assert output.add(1, ids[1:], logprobs[1:]) == Chunk(2, ids[2:], "cd", logprobs[2:])


def test_missing_tokens_are_noticed(byte_level: Tokenizer) -> None:
    output = sequence(byte_level)
    output.add(0, letters(byte_level, "ab"))
    with pytest.raises(PositionGap, match="from 2 to 2"):
        output.add(3, letters(byte_level, "d"))


def test_no_stop_string_before_min_tokens(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "abxbxb")
    chunk = sequence(byte_level, "b", min_tokens=3).add(0, ids)
    assert chunk == Chunk(0, ids[:4], "abx", finish_reason=FinishReason.STOP, ended_here=True)
    # The one that completes with the last token of the minimum counts.
    chunk = sequence(byte_level, "b", min_tokens=2).add(0, ids)
    assert chunk == Chunk(0, ids[:2], "a", finish_reason=FinishReason.STOP, ended_here=True)


@given(
    ids=st.lists(st.integers(0, 399), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    stops=st.lists(st.text(alphabet="abe \ufffd", min_size=1, max_size=2), max_size=2),
)
def test_cutting_the_tokens_differently_changes_nothing(
    byte_level: Tokenizer, ids: list[int], cuts: list[int], stops: list[str]
) -> None:
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = [(start, ids[start:end]) for start, end in itertools.pairwise(bounds)]

    def run(pieces: list[tuple[int, list[int]]]) -> tuple[list[int], str, FinishReason | None]:
        output = sequence(byte_level, *stops)
        chunks = [output.add(start, piece) for start, piece in pieces]
        chunks.append(output.add(len(ids), [], finish_reason=FinishReason.LENGTH))
        sent = [chunk for chunk in chunks if chunk]
        return [i for c in sent for i in c.token_ids], "".join(c.text for c in sent), output.finish_reason

    assert run(pieces) == run([(0, ids)])


def test_a_request_is_finished_with_its_last_sequence(byte_level: Tokenizer) -> None:
    output = RequestOutput([sequence(byte_level, "b"), sequence(byte_level)])
    ids = letters(byte_level, "abc")
    output.add(0, 0, ids)
    output.add(1, 0, ids[:1])
    assert not output.finished
    output.add(0, 3, ids)
    output.add(1, 1, ids[1:], finish_reason=FinishReason.LENGTH)
    assert output.finished


def test_a_ranked_sequence_has_its_score_in_its_last_chunk(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "ab")
    chunk = RequestOutput([sequence(byte_level)]).add(0, 0, ids, finish_reason=FinishReason.STOP, score=-1.5)
    assert chunk == Chunk(0, ids, "ab", finish_reason=FinishReason.STOP, score=-1.5)
