"""A stream that was cut anywhere and goes on says what the undisturbed one says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from gateway.gateway import Gateway
from gateway.output import FinishReason, TokenLogprobs
from gateway.prepared import PreparedRequest
from gateway.tokenizer import Tokenizer
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.gateway.generation import Generation
from services.gateway.pacer import Pacer
from services.gateway.received import Update
from services.gateway.request_stream import RequestStream
from services.rpc.status import RpcError
from tests.services.gateway.prepared_requests import prepared


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["ab", "Ġthe", "Ġsto", "stop"]
    backend = tokenizers.Tokenizer(models.BPE({each: i for i, each in enumerate([*alphabet, *words])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def byte_fallback() -> tokenizers.Tokenizer:
    """As LLaMA 2 has it."""
    words = ["▁", "a", "b", "ab", "▁the", "▁sto", "p", "stop", "é", "日"]
    vocabulary = {each: i for i, each in enumerate([*(f"<0x{byte:02X}>" for byte in range(256)), *words])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    return backend


def word_pieces() -> tokenizers.Tokenizer:
    words = ["[UNK]", "a", "##b", "the", "##sto", "##p", "stop", "é", "日本"]
    backend = tokenizers.Tokenizer(models.WordPiece({each: i for i, each in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return backend


GATEWAYS = {
    make.__name__: Gateway(Tokenizer(make()), "inner", now=datetime.now)
    for make in (byte_level, byte_fallback, word_pieces)
}


async def run(
    gateway: Gateway,
    request: PreparedRequest,
    updates: Iterable[Update],
    *,
    logged: Iterable[Update] = (),
    from_token: Sequence[int] = (),
) -> list[inference_pb2.GenerateResponse]:
    """The responses where these updates come one after the other, after some that were logged."""
    stream = RequestStream(1, request, None, Pacer(1000.0))
    stream.replay([replace(each, token_ids=list(each.token_ids)) for each in logged])
    generation = Generation(gateway, request, stream, from_token)
    responses: list[inference_pb2.GenerateResponse] = []

    async def read() -> None:
        async for data in generation.responses():
            responses.append(inference_pb2.GenerateResponse.FromString(data))

    reading = asyncio.ensure_future(read())
    for update in updates:
        await asyncio.sleep(0)
        stream.add(replace(update, token_ids=list(update.token_ids)))
    stream.end(kvmanager_pb2.RequestEnd(handle=1, usage=common_pb2.Usage(cached_tokens=3)))
    await reading
    return responses


def whole(
    responses: Iterable[inference_pb2.GenerateResponse], from_token: Sequence[int] = ()
) -> dict[int, tuple[list[int], str]]:
    """Tokens and text by sequence, where each response begins where the last one ended."""
    known: dict[int, tuple[list[int], str]] = {}
    for each in responses:
        index = each.sequence_index
        token_ids, text = known.get(index, ([], ""))
        start = from_token[index] if index < len(from_token) else 0
        assert each.position == start + len(token_ids)
        known[index] = [*token_ids, *each.token_ids], text + each.text
    return known


@st.composite
def answers(draw: st.DrawFn, name: str) -> tuple[list[Update], int]:
    """Tokens of up to three sequences in a random order, and how many sequences there are."""
    vocab_size = GATEWAYS[name].tokenizer.vocab_size
    n = draw(st.integers(1, 3))
    favourites = st.integers(max(0, vocab_size - 12), vocab_size - 1)
    sequences = [
        draw(st.lists(st.one_of(favourites, st.integers(0, vocab_size - 1)), min_size=1, max_size=12)) for _ in range(n)
    ]
    updates = []
    positions = [0] * n
    while any(position < len(sequence) for position, sequence in zip(positions, sequences, strict=True)):
        index = draw(st.sampled_from([i for i in range(n) if positions[i] < len(sequences[i])]))
        count = draw(st.integers(1, len(sequences[index]) - positions[index]))
        token_ids = sequences[index][positions[index] : positions[index] + count]
        last = positions[index] + count == len(sequences[index])
        updates.append(Update(index, positions[index], token_ids, finish_reason=FinishReason.LENGTH if last else None))
        positions[index] += count
    return updates, n


@pytest.mark.parametrize("name", GATEWAYS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_text_before_and_after_a_break_is_the_whole_text(name: str, data: st.DataObject) -> None:
    """Whatever is in the log, and whatever the client has of it, or beyond it."""
    gateway = GATEWAYS[name]
    updates, n = data.draw(answers(name))
    stop = data.draw(st.lists(st.sampled_from(["stop", "p", "b the", "日", "é\n", " sto"]), max_size=2, unique=True))
    request = prepared(n=n, kept=n, stop=tuple(stop), min_tokens=data.draw(st.integers(0, 3)))
    undisturbed = asyncio.run(run(gateway, request, updates))
    told = data.draw(st.integers(0, len(undisturbed)))
    before = whole(undisturbed[:told])
    from_token = [len(before.get(index, ([], ""))[0]) for index in range(n)]
    num_logged = data.draw(st.integers(0, len(updates)))
    logged, coming = updates[:num_logged], updates[data.draw(st.integers(0, num_logged)) :]
    after_break = asyncio.run(run(gateway, request, coming, logged=logged, from_token=from_token))
    after = whole(after_break, from_token)
    expected = whole(undisturbed)
    for index in range(n):
        (first, text), (rest, more) = before.get(index, ([], "")), after.get(index, ([], ""))
        assert ([*first, *rest], text + more) == expected[index]
    assert [each.HasField("usage") for each in after_break] == [False] * (len(after_break) - 1) + [True]
    assert after_break[-1].usage == undisturbed[-1].usage
    reasons = {each.sequence_index: each.finish_reason for each in undisturbed if each.finish_reason}
    for each in after_break:
        assert each.finish_reason in (0, reasons[each.sequence_index])


def logprobs(*values: float) -> list[TokenLogprobs]:
    return [TokenLogprobs(each) for each in values]


async def test_log_probabilities_go_on_with_their_tokens() -> None:
    request = prepared(shows_logprobs=True)
    updates = [Update(0, 0, [97, 98, 99], logprobs(-1, -2, -3)), Update(0, 3, [100], logprobs(-4), FinishReason.STOP)]
    responses = await run(GATEWAYS["byte_level"], request, updates[1:], logged=updates[:1], from_token=[2])
    assert [each.logprob for response in responses for each in response.logprobs] == [-3, -4]
    assert responses[0].position == 2


@pytest.mark.parametrize("known", [0, 1, 2, 3])
async def test_the_best_of_several_sequences(known: int) -> None:
    """They come whole; who has a part of one gets the rest of it."""
    gateway = GATEWAYS["byte_level"]
    request = prepared(n=2, kept=1, shows_logprobs=True)
    first, second = [ord(each) - 33 for each in "abc"], [ord(each) - 33 for each in "xyz"]
    updates = [
        Update(0, 0, first, logprobs(-5, -5, -5), FinishReason.LENGTH),
        Update(1, 0, second, logprobs(-1, -2, -3), FinishReason.LENGTH),
    ]
    (undisturbed,) = await run(gateway, request, updates)
    (rest,) = await run(gateway, request, [], logged=updates, from_token=[known])
    assert rest.position == known
    assert list(rest.token_ids) == second[known:]
    assert rest.text == undisturbed.text[known:]
    assert [each.logprob for each in rest.logprobs] == [-1, -2, -3][known:]
    for name in ("score", "finish_reason", "usage"):
        assert getattr(rest, name) == getattr(undisturbed, name)


@pytest.mark.parametrize("ranking", [{"best_of": 4}, {}])
async def test_a_position_beyond_the_end(ranking: dict[str, Any]) -> None:
    updates = [Update(0, 0, [70, 71], finish_reason=FinishReason.STOP)]
    with pytest.raises(RpcError, match="sequence 0 has 2 tokens") as caught:
        await run(GATEWAYS["byte_level"], prepared(**ranking), updates, from_token=[3])
    assert caught.value.code.name == "OUT_OF_RANGE"


async def test_who_has_everything_but_the_usage_gets_that() -> None:
    updates = [Update(0, 0, [70, 71], finish_reason=FinishReason.STOP)]
    (last,) = await run(GATEWAYS["byte_level"], prepared(), [], logged=updates, from_token=[2])
    assert (last.position, list(last.token_ids), last.text) == (2, [], "")
    assert last.finish_reason == common_pb2.FINISH_REASON_STOP
    assert last.usage.completion_tokens == 2
