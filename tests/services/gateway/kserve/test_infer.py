"""One response to one request: what is understood, what is answered, and what is refused by its name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from gateway.request import Guide, GuideKind
from octavo.kserve import inference_pb2, inference_pb2_grpc
from octavo.v1 import kvmanager_pb2
from services.gateway.kserve.requests import decode_request
from services.rpc.columns import unpack_int32
from tests.services.gateway.gateway_bench import STOP, Bench, bench, ids, save_bytes_tokenizer
from tests.services.gateway.kserve.messages import Given, infer_request, output, text
from tests.services.scripted_kvmanager import Script, end, refusal, tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes_tokenizer(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def serving(model: Path, script: Script, **settings: Any) -> AsyncIterator[tuple[Bench, Any]]:
    """A gateway whose model is called m, and the stub of a client."""
    async with (
        bench(model, script, model_name="m", **settings) as made,
        grpc.aio.insecure_channel(made.address) as channel,
    ):
        yield made, inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def prompt_of(submission: kvmanager_pb2.Submission) -> str:
    """As text."""
    alphabet = {token: character for character in map(chr, range(33, 127)) for token in ids(character)}
    return "".join(alphabet[token] for token in unpack_int32(submission.prompt_token_ids))


def echo(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    """Each sequence: the prompt, and the sequence's number."""
    prompt = prompt_of(submission)
    answers = [
        tokens(submission, ids(f"{prompt}{index}"), index=index, reason=STOP, logprobs=[-0.5] * (len(prompt) + 1))
        for index in range(submission.n)
    ]
    return [*answers, end(submission, prompt_tokens=len(prompt))]


async def error_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, message and field of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = rpc_status.from_call(caught.value)
    assert status is not None
    bad_request = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Is(bad_request.DESCRIPTOR):
            detail.Unpack(bad_request)
    return caught.value.code(), status.message, "".join(each.field for each in bad_request.field_violations)


# Questions


async def test_what_the_server_says_of_itself_and_its_model(model: Path) -> None:
    async with serving(model, echo, kvmanager_patience=0.0) as (made, stub):
        assert (await stub.ServerLive(inference_pb2.ServerLiveRequest())).live
        assert (await stub.ServerReady(inference_pb2.ServerReadyRequest())).ready
        assert (await stub.ServerMetadata(inference_pb2.ServerMetadataRequest())).name == "octavo"
        for name, version, ready in [("m", "", True), ("m", "1", True), ("m", "2", False), ("other", "", False)]:
            request = inference_pb2.ModelReadyRequest(name=name, version=version)
            assert (await stub.ModelReady(request)).ready is ready
        described = await stub.ModelMetadata(inference_pb2.ModelMetadataRequest(name="m"))
        assert {each.name: each.datatype for each in described.inputs}["text_input"] == "BYTES"
        assert {each.name: each.datatype for each in described.outputs}["text_output"] == "BYTES"
        config = (await stub.ModelConfig(inference_pb2.ModelConfigRequest(name="m", version="1"))).config
        assert [each.name for each in config.input if not each.optional] == ["text_input"]
        assert [each.name for each in config.input] == [each.name for each in described.inputs]
        assert config.model_transaction_policy.decoupled
        for call in (
            stub.ModelMetadata(inference_pb2.ModelMetadataRequest(name="other")),
            stub.ModelConfig(inference_pb2.ModelConfigRequest(name="other")),
        ):
            message = "name: only 'm' is served here, not 'other'"
            assert await error_of(call) == (grpc.StatusCode.NOT_FOUND, message, "name")
        made.kvmanager.lose_gateways()
        made.kvmanager.refusal = (grpc.StatusCode.UNAVAILABLE, "NO")
        while (await stub.ModelReady(inference_pb2.ModelReadyRequest(name="m"))).ready:
            await asyncio.sleep(0.005)
        assert not (await stub.ServerReady(inference_pb2.ServerReadyRequest())).ready
        assert (await stub.ServerLive(inference_pb2.ServerLiveRequest())).live


async def test_reflection_lists_the_service(model: Path) -> None:
    def services(address: str) -> Iterable[str]:
        with grpc.insecure_channel(address) as channel:
            return list(ProtoReflectionDescriptorDatabase(channel).get_services())

    async with serving(model, echo) as (made, _):
        assert "inference.GRPCInferenceService" in await asyncio.to_thread(services, made.address)


# Answers


@pytest.mark.parametrize("raw", [True, False])
async def test_everything_that_is_asked_for_arrives(model: Path, raw: bool) -> None:
    request = infer_request(
        raw=raw,
        id="seven",
        model="m",
        max_tokens=("INT32", [1], [12]),
        temperature=("FP32", [1, 1], [0.5]),
        top_p=("FP64", [1], [0.75]),
        random_seed=("UINT64", [1], [2**64 - 1]),
        stop_words=("BYTES", [1, 2], [b"x", b""]),
        ignore_eos=("BOOL", [1], [True]),
        sampling_parameters=("BYTES", [1], [b'{"top_k": "40", "n": 2, "min_p": null, "logit_bias": {"7": -2.5}}']),
        parameters={"min_tokens": 3, "priority": 5, "timeout": 30_000_000, "presence_penalty": 0.25},
        return_finish_reason=("BOOL", [1], [True]),
        return_cumulative_logprob=("BOOL", [1], [True]),
        return_num_input_tokens=("BOOL", [1], [True]),
        return_num_output_tokens=("BOOL", [1], [True]),
    )
    async with serving(model, echo) as (made, stub):
        response = await stub.ModelInfer(request)
        assert (response.id, response.model_name, response.model_version) == ("seven", "m", "1")
        assert bool(response.raw_output_contents) is raw
        assert output(response, "text_output") == [b"abcabc0", b"abcabc1"]
        assert output(response, "finish_reason") == [b"stop", b"stop"]
        assert output(response, "cumulative_logprob") == [-2, -2]
        assert output(response, "num_input_tokens") == [3]
        assert output(response, "num_output_tokens") == [4, 4]
        submission = made.submission
        assert (submission.n, submission.priority) == (2, -5)
        assert 29e6 < submission.timeout_us <= 30e6
        sampling = submission.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 40)
        assert (sampling.seed, sampling.presence_penalty) == (2**64 - 1, 0.25)
        assert dict(sampling.logit_bias) == {7: -2.5}
        assert (submission.max_tokens, submission.min_tokens) == (12, 3)


async def test_the_prompt_is_left_out_where_that_is_asked(model: Path) -> None:
    async with serving(model, echo) as (_, stub):
        whole = await stub.ModelInfer(infer_request())
        bare = await stub.ModelInfer(infer_request(exclude_input_in_output=("BOOL", [1], [True])))
    assert output(whole, "text_output") == [b"abcabc0"]
    assert output(bare, "text_output") == [b"abc0"]
    assert [each.name for each in bare.outputs] == ["text_output"]


@pytest.mark.parametrize(
    ("shape", "n", "expected"),
    [
        ([3], 1, [b"a0", b"bb0", b"c0"]),
        ([3, 1], 1, [[b"a0"], [b"bb0"], [b"c0"]]),
        ([3], 2, [b"a0", b"a1", b"bb0", b"bb1", b"c0", b"c1"]),
        ([3, 1], 2, [[b"a0", b"a1"], [b"bb0", b"bb1"], [b"c0", b"c1"]]),
    ],
)
async def test_several_prompts_keep_their_order(model: Path, shape: list[int], n: int, expected: list[Any]) -> None:
    """Whichever is done first."""
    waiting: list[kvmanager_pb2.Submission] = []

    def last_first(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        waiting.append(submission)
        if len(waiting) < 3:
            return []
        return [message for each in reversed(waiting) for message in echo(each)]

    prompts: Given = ("BYTES", shape, [b"a", b"bb", b"c"])
    request = infer_request(
        prompts,
        outputs=["num_input_tokens", "text_output"],
        exclude_input_in_output=("BOOL", [1], [True]),
        max_tokens=("INT32", shape, [5, 6, 7]),
        stop=("BYTES", [3, 2], [b"x", b"y", b"x", b"", b"z", b"z"]),
        parameters={"n": n},
    )
    async with serving(model, last_first) as (made, stub):
        response = await stub.ModelInfer(request)
        assert [each.name for each in response.outputs] == ["num_input_tokens", "text_output"]
        assert output(response, "text_output") == expected
        assert list(response.outputs[0].shape) == shape
        limits = {prompt_of(each): each.max_tokens for each in made.kvmanager.submissions}
        assert limits == {"a": 5, "bb": 6, "c": 7}


async def test_a_prompt_that_is_refused_ends_the_others(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        if prompt_of(submission) != "b":
            return []
        return [refusal(submission, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL")]

    async with serving(model, script) as (made, stub):
        code, message, _ = await error_of(stub.ModelInfer(infer_request(text("a", "b", "c"))))
        assert (code, message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        while len(made.kvmanager.aborts) < 2:
            await asyncio.sleep(0.005)


async def test_a_long_prompt(model: Path) -> None:
    """It is read on a thread; what is wrong with it is said all the same."""
    async with serving(model, echo) as (_, stub):
        code, message, field = await error_of(stub.ModelInfer(infer_request("a" * 20_000)))
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "text_input")
        assert "20000 tokens" in message
        code, _, field = await error_of(stub.ModelInfer(infer_request("a" * 20_000, max_tokens=FLAG)))
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "max_tokens")


async def test_a_client_that_leaves_ends_its_request(model: Path) -> None:
    async with serving(model, lambda _: []) as (made, stub):
        call = stub.ModelInfer(infer_request(text("a", "b")))
        while len(made.kvmanager.submissions) < 2:
            await asyncio.sleep(0.005)
        call.cancel()
        while len(made.kvmanager.aborts) < 2:
            await asyncio.sleep(0.005)


async def test_the_call_s_deadline_is_the_request_s(model: Path) -> None:
    async with serving(model, echo) as (made, stub):
        await stub.ModelInfer(infer_request(parameters={"timeout": 90_000_000}), timeout=30)
        assert 0 < made.submission.timeout_us < 60e6


async def test_a_guide(tmp_path: Path) -> None:
    model = save_bytes_tokenizer(tmp_path, eos="ÿ")
    schema = {"type": "object"}
    parameters = {"sampling_parameters": json.dumps({"guided_decoding": {"json": schema}})}
    async with serving(model, echo) as (made, stub):
        await stub.ModelInfer(infer_request(parameters=parameters))
        assert schema["type"] in made.submission.sampling.guide.grammar


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"json": {"type": "object"}}, Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}')),
        ({"json": '{"type": "object"}', "regex": None}, Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}')),
        ({"regex": "[ab]+"}, Guide(GuideKind.REGEX, "[ab]+")),
        ({"grammar": "start: /a/"}, Guide(GuideKind.GRAMMAR, "start: /a/")),
        ({"choice": ["a", "b"]}, Guide(GuideKind.CHOICE, choices=("a", "b"))),
    ],
)
def test_guides(given: dict[str, Any], expected: Guide) -> None:
    in_json = infer_request(parameters={"sampling_parameters": json.dumps({"guided_decoding": given})})
    alone = infer_request(guided_decoding=("BYTES", [1], [json.dumps(given).encode()]))
    for request in (in_json, alone):
        (generation,) = decode_request(request, None).generations
        assert generation.sampling.guide == expected


async def test_a_guide_that_is_refused_is_named_as_it_was_given(model: Path) -> None:
    """The model of these tests has no end of sequence."""
    async with serving(model, echo) as (_, stub):
        request = infer_request(parameters={"guided_decoding": '{"regex": "a+"}'})
        code, message, field = await error_of(stub.ModelInfer(request))
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "guided_decoding"), message


async def test_who_is_asking(model: Path) -> None:
    async with serving(model, echo, trusted_identity=True) as (made, stub):
        assert (await stub.ServerReady(inference_pb2.ServerReadyRequest())).ready
        for call in (
            stub.ModelInfer(infer_request()),
            stub.ModelReady(inference_pb2.ModelReadyRequest(name="m")),
            stub.ModelMetadata(inference_pb2.ModelMetadataRequest(name="m")),
            stub.ModelConfig(inference_pb2.ModelConfigRequest(name="m")),
        ):
            assert (await error_of(call))[0] is grpc.StatusCode.UNAUTHENTICATED
        await stub.ModelInfer(infer_request(), metadata=[("octavo-tenant", "acme"), ("octavo-app", "x")])
        assert made.submission.tenant == "acme"


# Refusals

INT, FLAG, BYTES = ("INT32", [1], [3]), ("BOOL", [1], [True]), ("BYTES", [1], [b"x"])


def in_json(**parameters: Any) -> dict[str, Any]:
    return {"sampling_parameters": ("BYTES", [1], [json.dumps(parameters).encode()])}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ("FP32", [1], [1.0])}, "text_input", "datatype must be BYTES"),
    ({"prompt": ("BYTES", [2], [b"a"])}, "text_input", "has 1 elements"),
    ({"prompt": ("BYTES", [1, 2], [b"a", b"b"])}, "text_input", "[prompts, 1]"),
    ({"prompt": ("BYTES", [0], [])}, "text_input", "sizes from 1"),
    ({"prompt": ("BYTES", [], [b"a"])}, "text_input", "sizes from 1"),
    ({"prompt": ("BYTES", [1], [b"\xff"])}, "text_input", "UTF-8"),
    ({"prompt": ""}, "text_input", "must not be empty"),
    ({"prompt": "a" * 64}, "text_input", "64 tokens"),
    ({"prompt": text(*"a" * 257)}, "text_input", "at most 256"),
    ({"prompt": text(*"a" * 129), "n": ("INT32", [1], [2])}, "text_input", "at most 256"),
    ({"n": ("INT32", [1], [2**31 - 1])}, "text_input", "at most 256"),
    ({"n": ("INT32", [1], [-1])}, "n", "from 1"),
    ({"n": ("INT32", [1], [65])}, "n", "from 1 to 64"),
    ({"prompt": text("a", "b"), "max_tokens": ("INT32", [3], [1, 2, 3])}, "max_tokens", "each of 2 prompts"),
    ({"prompt": text("a", "b"), "stop": ("BYTES", [3, 1], [b"x"] * 3)}, "stop", "each of 2 prompts"),
    ({"stream": FLAG}, "stream", "ModelStreamInfer"),
    ({"stream": INT}, "stream", "datatype must be BOOL"),
    ({"image": BYTES}, "image", "no such input"),
    ({"max_tokens": ("FP32", [1], [3.0])}, "max_tokens", "datatype must be INT32"),
    ({"max_tokens": ("INT32", [2], [3, 3])}, "max_tokens", "one for each of 1 prompts"),
    ({"max_tokens": ("INT64", [1], [2**40])}, "max_tokens", "32 bits"),
    ({"max_tokens": INT, "parameters": {"max_tokens": 4}}, "max_tokens", "given twice"),
    ({"max_tokens": ("INT32", [1], [0])}, "max_tokens", "at least 1"),
    ({"min_length": ("INT32", [1], [-1])}, "min_length", "at least 0"),
    ({"min_length": INT, "parameters": {"min_tokens": 4}}, "min_", "is the same"),
    ({"outputs": ["logits"]}, "outputs[0].name", "text_output"),
    ({"outputs": ["text_output", "text_output"]}, "outputs", "different"),
    ({"parameters": {"sequence_id": 3}}, "sequence_id", "no such parameter"),
    ({"parameters": {"priority": 101}}, "priority", "from 0"),
    ({"parameters": {"timeout": -1}}, "timeout", "at least 0"),
    ({"parameters": {"temperature": "warm"}}, "temperature", "a number"),
    ({"parameters": {"top_k": 2.5}}, "top_k", "whole number"),
    ({"parameters": {"ignore_eos": 3}}, "ignore_eos", "true or false"),
    (in_json(temperature=[1]), "temperature", "a number"),
    (in_json(temperature=-1), "temperature", "must be from 0"),
    (in_json(top_a=1), "sampling_parameters.top_a", "no such sampling parameter"),
    (in_json(logit_bias={"x": 1}), "logit_bias", "whole number"),
    (in_json(logit_bias={"7": 1e9}), "logit_bias[7]", "100"),
    (in_json(stop=["a"] * 17), "stop", "at most 16"),
    (in_json(guided_decoding={"json": "{}", "regex": "a"}), "guided_decoding", "one of"),
    ({"sampling_parameters": ("BYTES", [1], [b"{"])}, "sampling_parameters", "not JSON"),
    ({"sampling_parameters": ("BYTES", [1], [b"[" * 100_000])}, "sampling_parameters", "not JSON"),
    ({"sampling_parameters": ("BYTES", [1], [b"[]"])}, "sampling_parameters", "JSON object"),
    ({"prompt": text("a", "b"), "n": ("INT32", [2], [1, 2])}, "n", "same for all prompts"),
]
"""Requests, what their errors name, and words of them."""


@pytest.mark.parametrize("raw", [True, False])
async def test_what_is_at_fault_is_named(model: Path, raw: bool) -> None:
    async with serving(model, echo) as (made, stub):
        for inputs, field, words in REFUSED:
            code, message, named = await error_of(stub.ModelInfer(infer_request(**inputs, raw=raw)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, message
            assert named.startswith(field), message
            assert message.startswith(f"{named}: ")
            assert words in message
        assert not made.kvmanager.submissions


async def test_messages_that_are_none(model: Path) -> None:
    def changed(change: Callable[[inference_pb2.ModelInferRequest], object], raw: bool) -> Any:
        request = infer_request(raw=raw)
        change(request)
        return request

    cases = [
        (changed(lambda r: r.raw_input_contents.append(b""), True), "raw_input_contents"),
        (changed(lambda r: r.inputs[0].contents.bytes_contents.append(b"x"), True), "text_input"),
        (changed(lambda r: r.raw_input_contents.__setitem__(0, b"\x05\x00\x00\x00abc"), True), "text_input"),
        (changed(lambda r: r.raw_input_contents.__setitem__(0, b"\x05"), True), "text_input"),
        (changed(lambda r: r.inputs[0].contents.int_contents.append(1), False), "text_input"),
        (changed(lambda r: r.inputs.append(r.inputs[0]), False), "inputs[1].name"),
        (changed(lambda r: r.inputs.add(datatype="BYTES"), False), "inputs[1].name"),
        (changed(lambda r: r.inputs.pop(), False), "text_input"),
        (changed(lambda r: r.inputs[0].parameters["shared_memory_region"].SetInParent(), False), "text_input"),
        (changed(lambda r: r.parameters["seed"].SetInParent(), False), "seed"),
        (
            changed(lambda r: r.outputs.add(name="text_output").parameters["classification"].SetInParent(), False),
            "outp",
        ),
    ]
    async with serving(model, echo) as (made, stub):
        for request, field in cases:
            code, message, named = await error_of(stub.ModelInfer(request))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, message
            assert named.startswith(field), message
        for request, field in [
            (infer_request(model="other"), "model_name"),
            (changed(lambda r: setattr(r, "model_version", "2"), False), "model_version"),
        ]:
            code, message, named = await error_of(stub.ModelInfer(request))
            assert (code, named) == (grpc.StatusCode.NOT_FOUND, field), message
        async with grpc.aio.insecure_channel(made.address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert (await error_of(call(b"\xff\xff")))[:2] == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "the request is not a ModelInferRequest message",
            )
            assert (await error_of(call(b"\x1a\x01\xff")))[2] == "id"
        assert not made.kvmanager.submissions
