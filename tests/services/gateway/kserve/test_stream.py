"""Many requests on one stream: side by side, each with its id, and none that fails ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.kserve import inference_pb2, inference_pb2_grpc
from octavo.v1 import kvmanager_pb2
from tests.services.gateway.gateway_bench import STOP, Bench, bench, ids, save_bytes_tokenizer
from tests.services.gateway.kserve.messages import Given, infer_request, output, text
from tests.services.scripted_kvmanager import Script, end, eventually, tokens

STREAM: dict[str, Given] = {"stream": ("BOOL", [1], [True])}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes_tokenizer(tmp_path_factory.mktemp("model"))


class Conversation:
    """A stream, and what has come on it.

    Attributes:
        by_id: the responses to each request that are no errors.
        errors: by request id.
    """

    def __init__(self, stub: Any, **arguments: Any) -> None:
        self.call = stub.ModelStreamInfer(**arguments)
        self.by_id: dict[str, list[inference_pb2.ModelInferResponse]] = {}
        self.errors: dict[str, str] = {}

    async def send(self, *requests: inference_pb2.ModelInferRequest) -> None:
        for request in requests:
            await self.call.write(request)

    async def read(self, count: int = 1) -> None:
        """Reads so many more responses."""
        for _ in range(count):
            message = await asyncio.wait_for(self.call.read(), 30)
            assert message is not grpc.aio.EOF, f"{await self.call.code()}: {await self.call.details()}"
            response = message.infer_response
            if message.error_message:
                assert not response.outputs
                self.errors[response.id] = message.error_message
            else:
                self.by_id.setdefault(response.id, []).append(response)

    async def read_to_the_end(self) -> None:
        await self.call.done_writing()
        while (message := await asyncio.wait_for(self.call.read(), 30)) is not grpc.aio.EOF:
            self.by_id.setdefault(message.infer_response.id, []).append(message.infer_response)
        assert await self.call.code() is grpc.StatusCode.OK

    def texts(self, id: str) -> list[Any]:
        return [output(each, "text_output") for each in self.by_id[id]]

    def finals(self, id: str) -> list[bool]:
        return [each.parameters["triton_final_response"].bool_param for each in self.by_id[id]]


@asynccontextmanager
async def serving(model: Path, script: Script, **settings: Any) -> AsyncIterator[tuple[Bench, Any]]:
    async with (
        bench(model, script, model_name="m", **settings) as made,
        grpc.aio.insecure_channel(made.address) as channel,
    ):
        yield made, inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def nothing(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    return []


def last(submission: kvmanager_pb2.Submission, answer: str, position: int) -> list[kvmanager_pb2.AttachResponse]:
    """What ends a request with one sequence."""
    return [tokens(submission, ids(answer), position=position, reason=STOP), end(submission)]


async def submissions_of(made: Bench, count: int) -> list[kvmanager_pb2.Submission]:
    await eventually(lambda: len(made.kvmanager.submissions) == count)
    return made.kvmanager.submissions


@pytest.mark.parametrize("raw", [True, False])
async def test_text_comes_as_it_is_generated(model: Path, raw: bool) -> None:
    async with serving(model, nothing) as (made, stub):
        conversation = Conversation(stub)
        asked = infer_request(
            id="x", raw=raw, **STREAM, outputs=["text_output", "finish_reason", "num_output_tokens", "num_input_tokens"]
        )
        await conversation.send(asked)
        (submission,) = await submissions_of(made, 1)
        made.kvmanager.tell(tokens(submission, ids("ab")))
        await conversation.read()
        made.kvmanager.tell(tokens(submission, ids("c"), position=2))
        await conversation.read()
        made.kvmanager.tell(*last(submission, "de", 3))
        await conversation.read_to_the_end()
        assert conversation.texts("x") == [[b"ab"], [b"c"], [b"de"]]
        assert conversation.finals("x") == [False, False, True]
        assert [output(each, "finish_reason") for each in conversation.by_id["x"]] == [[b""], [b""], [b"stop"]]
        assert [output(each, "num_output_tokens") for each in conversation.by_id["x"]] == [[2], [1], [2]]
        assert [output(each, "num_input_tokens") for each in conversation.by_id["x"]] == [[3], [3], [3]]


async def test_one_response_where_no_stream_is_wanted(model: Path) -> None:
    async with serving(model, nothing) as (made, stub):
        conversation = Conversation(stub)
        await conversation.send(infer_request(id="x", parameters={"triton_enable_empty_final_response": True}))
        (submission,) = await submissions_of(made, 1)
        made.kvmanager.tell(tokens(submission, ids("ab")), *last(submission, "c", 2))
        await conversation.read_to_the_end()
        assert conversation.texts("x") == [[b"abcabc"]]
        assert conversation.finals("x") == [True]


async def test_requests_of_a_stream_run_side_by_side(model: Path) -> None:
    """The first one ends last; one between fails; one has the same id as another, which is its client's affair."""
    async with serving(model, nothing) as (made, stub):
        conversation = Conversation(stub)
        await conversation.send(infer_request("aaa", id="a", **STREAM), infer_request("bbb", id="b", **STREAM))
        first, second = await submissions_of(made, 2)
        made.kvmanager.tell(tokens(first, ids("1")))
        await conversation.read()
        made.kvmanager.tell(*last(second, "2", 0))
        await conversation.read()
        assert conversation.finals("b") == [True]
        await conversation.send(infer_request("ccc", id="c", parameters={"max_tokens": 0}))
        await conversation.read()
        assert conversation.errors == {"c": "INVALID_ARGUMENT: max_tokens: must be at least 1, is 0"}
        await conversation.send(infer_request("ddd", id="a", **STREAM))
        *_, third = await submissions_of(made, 3)
        made.kvmanager.tell(*last(third, "3", 0), *last(first, "4", 1))
        await conversation.read_to_the_end()
        assert sorted(conversation.texts("a")) == [[b"1"], [b"3"], [b"4"]]


async def test_sequences_and_prompts_have_their_places(model: Path) -> None:
    async with serving(model, nothing) as (made, stub):
        conversation = Conversation(stub)
        await conversation.send(infer_request(("BYTES", [2, 1], [b"a", b"b"]), parameters={"n": 2}, **STREAM))
        first, second = await submissions_of(made, 2)
        made.kvmanager.tell(tokens(second, ids("x"), index=1))
        await conversation.read()
        made.kvmanager.tell(*[tokens(first, ids("y"), index=index, reason=STOP) for index in range(2)], end(first))
        await conversation.read(2)
        made.kvmanager.tell(tokens(second, [], index=1, position=1, reason=STOP))
        made.kvmanager.tell(tokens(second, ids("z"), index=0, reason=STOP), end(second))
        await conversation.read_to_the_end()
        assert conversation.texts("")[0] == [[b"", b""], [b"", b"x"]]
        whole = [
            "".join(each[prompt][index].decode() for each in conversation.texts(""))
            for prompt, index in [(0, 0), (0, 1), (1, 0), (1, 1)]
        ]
        assert whole == ["y", "y", "z", "x"]
        assert conversation.finals("") == [False] * (len(conversation.finals("")) - 1) + [True]


async def test_a_message_that_is_none_is_answered_too(model: Path) -> None:
    async with serving(model, nothing) as (made, _), grpc.aio.insecure_channel(made.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await call.write(b"\xff\xff")
        answer = inference_pb2.ModelStreamInferResponse.FromString(await call.read())
        assert answer.error_message == "INVALID_ARGUMENT: the request is not a ModelInferRequest message"
        await call.write(infer_request(id="x").SerializeToString())
        (submission,) = await submissions_of(made, 1)
        made.kvmanager.tell(*last(submission, "a", 0))
        answer = inference_pb2.ModelStreamInferResponse.FromString(await call.read())
        assert output(answer.infer_response, "text_output") == [b"abca"]
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_the_prompt_is_never_streamed(model: Path) -> None:
    async with serving(model, nothing) as (_, stub):
        conversation = Conversation(stub)
        await conversation.send(infer_request(id="x", **STREAM, exclude_input_in_output=("BOOL", [1], [False])))
        await conversation.read()
        assert conversation.errors["x"].startswith("INVALID_ARGUMENT: exclude_input_in_output: must be true")


async def test_a_client_that_leaves_ends_its_requests(model: Path) -> None:
    async with serving(model, nothing) as (made, stub):
        conversation = Conversation(stub)
        await conversation.send(infer_request(id="a", **STREAM), infer_request(text("b", "c"), id="b"))
        await submissions_of(made, 3)
        made.kvmanager.tell(tokens(made.kvmanager.submissions[0], ids("1")))
        await conversation.read()
        conversation.call.cancel()
        await eventually(lambda: len(made.kvmanager.aborts) == 3)


async def test_without_an_identity_there_is_no_stream(model: Path) -> None:
    async with serving(model, nothing, trusted_identity=True) as (made, stub):
        refused = stub.ModelStreamInfer()
        assert await refused.code() is grpc.StatusCode.UNAUTHENTICATED
        conversation = Conversation(stub, metadata=[("octavo-tenant", "acme"), ("octavo-app", "x")])
        await conversation.send(infer_request(id="a"))
        (submission,) = await submissions_of(made, 1)
        assert submission.tenant == "acme"


async def test_an_open_stream_does_not_hold_up_the_end(model: Path) -> None:
    """What was asked is answered first; nothing more is taken."""
    async with serving(model, nothing, drain_seconds=60) as (made, stub):
        idle, busy = Conversation(stub), Conversation(stub)
        await busy.send(infer_request(id="a", **STREAM))
        (submission,) = await submissions_of(made, 1)
        made.kvmanager.tell(tokens(submission, ids("1")))
        await busy.read()
        stopping = asyncio.ensure_future(made.service.stop())
        assert await idle.call.code() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()
        made.kvmanager.tell(*last(submission, "2", 1))
        await busy.read()
        assert busy.texts("a") == [[b"1"], [b"2"]]
        assert await busy.call.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(stopping, 30)
