"""What is refused: the right status, the field that is at fault, and nothing left behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from octavo.client import OctavoError, generate_request
from octavo.v1 import common_pb2, inference_pb2
from tests.services.e2e.calls import Caller
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.stack import Stack
from tests.services.e2e.tiny_model import MAX_MODEL_LEN, VOCAB_SIZE

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NO_TEXT = b"so far good \xff\xfe"


@pytest.fixture(autouse=True)
def _nothing_is_left_and_the_next_request_is_served(stack: Stack) -> Iterator[None]:
    yield
    stack.wait_until_idle()
    assert len(stack.caller.generate("next", max_tokens=3, ignore_eos=True).token_ids) == 3


def refusal(caller: Caller, request: inference_pb2.GenerateRequest | bytes) -> OctavoError:
    call = caller.send(request)
    error = call.error()
    assert not call.partial_answer().sequences
    assert error.reason
    assert error.from_server
    return error


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (inference_pb2.Prompt(), "prompt"),
        (inference_pb2.Prompt(text=""), "prompt.text"),
        (inference_pb2.Prompt(chat=inference_pb2.ChatPrompt()), "prompt.chat.messages"),
        (
            inference_pb2.Prompt(chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(content="x")])),
            "prompt.chat.messages[0].role",
        ),
        (inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt()), "prompt.tokens.token_ids"),
        (inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=[5, -1])), "prompt.tokens.token_ids[1]"),
        (inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=[VOCAB_SIZE])), "prompt.tokens.token_ids[0]"),
        (inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=[2] * MAX_MODEL_LEN)), "prompt.tokens"),
        (inference_pb2.Prompt(text="a page " * MAX_MODEL_LEN), "prompt.text"),
    ],
)
def test_prompts(caller: Caller, prompt: inference_pb2.Prompt, field: str) -> None:
    error = refusal(caller, inference_pb2.GenerateRequest(prompt=prompt))
    assert (error.status, error.field) == (INVALID, field)
    if "a page" in prompt.text or len(prompt.tokens.token_ids) == MAX_MODEL_LEN:
        assert str(MAX_MODEL_LEN) in error.message


def test_no_prompt_at_all(caller: Caller) -> None:
    for request in (inference_pb2.GenerateRequest(), b""):
        error = refusal(caller, request)
        assert (error.status, error.field) == (INVALID, "prompt")


@pytest.mark.parametrize(
    ("sampling", "field", "limit"),
    [
        ({"temperature": -0.1}, "temperature", "0"),
        ({"temperature": math.nan}, "temperature", "0"),
        ({"temperature": math.inf}, "temperature", "100"),
        ({"top_p": 0.0}, "top_p", "1"),
        ({"top_p": math.nan}, "top_p", "1"),
        ({"top_k": -1}, "top_k", "0"),
        ({"min_p": 1.5}, "min_p", "1"),
        ({"n": 0}, "n", "64"),
        ({"n": 65}, "n", "64"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"max_tokens": MAX_MODEL_LEN}, "max_tokens", str(MAX_MODEL_LEN)),
        ({"min_tokens": -1}, "min_tokens", "0"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "8"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"stop": ["ok", ""]}, "stop[1]", ""),
        ({"stop": ["x"] * 17}, "stop", "16"),
        ({"stop_token_ids": [1, VOCAB_SIZE]}, "stop_token_ids[1]", str(VOCAB_SIZE - 1)),
    ],
)
def test_sampling_parameters(caller: Caller, sampling: dict[str, Any], field: str, limit: str) -> None:
    error = refusal(caller, generate_request("a page", sampling=sampling))
    assert (error.status, error.field) == (INVALID, f"sampling.{field}")
    assert limit in error.message


def test_more_than_the_pool_holds(caller: Caller, stack: Stack) -> None:
    """Refused at once, not when the blocks run out."""
    state = stack.memory_map()
    assert state.num_blocks * state.block_size < 64 * MAX_MODEL_LEN
    error = refusal(caller, generate_request("x", sampling={"n": 64, "max_tokens": MAX_MODEL_LEN - 10}))
    assert (error.status, error.field) == (INVALID, "sampling.max_tokens")
    assert "64" in error.message


def test_more_sequences_than_run_at_once(make_stack: MakeStack) -> None:
    stack = make_stack(kvmanager={"max_sequences": 8})
    error = refusal(stack.caller, generate_request("x", sampling={"n": 9}))
    assert (error.status, error.field) == (INVALID, "sampling.n")
    assert "8" in error.message
    stack.wait_until_idle()


def test_unknown_model(caller: Caller) -> None:
    error = refusal(caller, generate_request("x", model="gpt-7"))
    assert (error.status, error.field) == (grpc.StatusCode.NOT_FOUND, "model")
    assert "gpt-7" in error.message
    assert "tiny" in error.message
    caller.send(generate_request("x", model="tiny", sampling={"max_tokens": 1})).result()


@pytest.mark.parametrize("seconds", [0, -1, 10**12])
def test_timeouts(caller: Caller, seconds: int) -> None:
    request = generate_request("x")
    request.timeout.CopyFrom(Duration(seconds=seconds))
    error = refusal(caller, request)
    assert (error.status, error.field) == (INVALID, "timeout")


@pytest.mark.parametrize("request_id", ["x" * 129, "line\nbreak"])
def test_request_ids(caller: Caller, request_id: str) -> None:
    error = refusal(caller, generate_request("x", request_id=request_id))
    assert (error.status, error.field) == (INVALID, "request_id")


def test_a_request_id_that_is_running(caller: Caller, stack: Stack) -> None:
    first = caller.start("x", request_id="twin", n=8, max_tokens=400, ignore_eos=True)
    first.wait_for_tokens(1)
    error = refusal(caller, generate_request("x", request_id="twin"))
    assert (error.status, error.field) == (grpc.StatusCode.ALREADY_EXISTS, "request_id")
    first.cancel()
    stack.wait_until_idle()
    caller.generate("x", request_id="twin", max_tokens=1)


def _bytes_for(text: str) -> Callable[[Message], bytes]:
    """Puts bytes that are no UTF-8 where a message has `text`: of the same length, so that every frame stays whole."""

    def replace(message: Message) -> bytes:
        data = message.SerializeToString()
        assert data.count(text.encode()) == 1
        return data.replace(text.encode(), NO_TEXT)

    return replace


MARK = "m" * len(NO_TEXT)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (generate_request(MARK), "prompt.text"),
        (
            generate_request([{"role": "system", "content": "é"}, {"role": "user", "content": MARK}]),
            "prompt.chat.messages[1].content",
        ),
        (generate_request([{"role": MARK, "content": ""}]), "prompt.chat.messages[0].role"),
        (generate_request("x", sampling={"stop": ["fine", "so", MARK]}), "sampling.stop[2]"),
        (generate_request("x", model=MARK), "model"),
        (generate_request("x", request_id=MARK), "request_id"),
    ],
)
def test_broken_utf8(caller: Caller, request_: inference_pb2.GenerateRequest, field: str) -> None:
    error = refusal(caller, _bytes_for(MARK)(request_))
    assert (error.status, error.field) == (INVALID, field)
    assert "UTF-8" in error.message


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", NO_TEXT, b"\x12\x05\x0a\x03ab"])
def test_garbage(caller: Caller, data: bytes) -> None:
    error = refusal(caller, data)
    assert error.status == INVALID
    assert "GenerateRequest" in error.message


def test_an_oversized_message(caller: Caller) -> None:
    call = caller.send(generate_request("x" * (4 * 1024 * 1024 + 1)))
    error = call.error()
    assert error.status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(4 * 1024 * 1024) in error.message


def test_a_prompt_of_megabytes_that_is_no_oversized_message(caller: Caller) -> None:
    error = refusal(caller, generate_request("page " * 200_000))
    assert (error.status, error.field) == (INVALID, "prompt.text")


def test_a_full_queue(make_stack: MakeStack) -> None:
    """The executor is held still, so that one runs and two wait for as long as the test likes."""
    stack = make_stack(kvmanager={"max_sequences": 1, "max_waiting_requests": 2})
    stack.executor.pause()
    calls = [stack.caller.start("first", max_tokens=5, ignore_eos=True)]
    stack.wait_for_requests(running=1)
    calls += [stack.caller.start(f"waits {i}", max_tokens=5, ignore_eos=True) for i in range(2)]
    stack.wait_for_requests(running=1, waiting=2)
    error = refusal(stack.caller, generate_request("one too many"))
    assert error.status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.reason == "QUEUE_FULL"
    assert error.retry_after is not None
    assert error.retry_after > 0
    stack.executor.go_on()
    for call in calls:
        assert len(call.result().token_ids) == 5
    stack.wait_until_idle()
    assert stack.caller.generate("room again", max_tokens=1).complete


def test_the_other_methods_refuse_as_well(caller: Caller) -> None:
    def tokenize(data: bytes) -> OctavoError:
        call = caller.channel.unary_unary("/octavo.v1.GenerationService/Tokenize", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(data, timeout=10)
        return OctavoError.from_rpc(caught.value)

    empty = tokenize(inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="")).SerializeToString())
    assert (empty.status, empty.field) == (INVALID, "prompt.text")
    broken = tokenize(_bytes_for(MARK)(inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text=MARK))))
    assert (broken.status, broken.field) == (INVALID, "prompt.text")
    unknown = tokenize(
        inference_pb2.TokenizeRequest(model="gpt-7", prompt=inference_pb2.Prompt(text="x")).SerializeToString()
    )
    assert (unknown.status, unknown.field) == (grpc.StatusCode.NOT_FOUND, "model")


def test_a_field_that_this_version_does_not_know_is_skipped(caller: Caller) -> None:
    known = inference_pb2.GenerateRequest(
        prompt=inference_pb2.Prompt(text="x"), sampling=common_pb2.SamplingParams(max_tokens=2, ignore_eos=True)
    )
    future = known.SerializeToString() + b"\xfa\x3e\x03abc"
    assert len(caller.send(future).result().token_ids) == 2
