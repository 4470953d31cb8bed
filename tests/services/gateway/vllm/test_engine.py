"""vLLM's engine protocol spoken with a gateway, in front of a KV manager that does what it is told."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from octavo.client import OctavoError
from octavo.v1 import kvmanager_pb2
from services.gateway import vllm as package
from services.rpc.columns import unpack_int32
from tests.services.gateway.gateway_bench import (
    ALPHABET,
    LENGTH,
    STOP,
    Bench,
    bench,
    ids,
    one_answer,
    save_bytes_tokenizer,
)
from tests.services.scripted_kvmanager import MODEL, Script, end, eventually, refusal, tokens

O_UMLAUT = ids("Ã¶")
"""The letter's two bytes, as the vocabulary spells them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_bytes_tokenizer(tmp_path_factory.mktemp("model"))
    # Guided answers need a token that ends them.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 255}))
    return folder


def request(stream: bool = True, request_id: str = "r", prompt: str = "abc", **sampling: Any) -> vllm.GenerateRequest:
    return vllm.GenerateRequest(
        request_id=request_id,
        tokenized=vllm.TokenizedInput(input_ids=ids(prompt)),
        stream=stream,
        sampling_params=vllm.SamplingParams(**sampling),
    )


class Engine:
    """A gateway as a router sees it."""

    def __init__(self, bench: Bench, channel: grpc.aio.Channel) -> None:
        self.bench = bench
        self.channel = channel
        self.stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)

    async def generate(
        self, message: vllm.GenerateRequest, metadata: Sequence[tuple[str, str]] = ()
    ) -> list[vllm.GenerateResponse]:
        return [response async for response in self.stub.Generate(message, metadata=metadata)]

    async def refused(self, message: vllm.GenerateRequest) -> OctavoError:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.generate(message)
        return OctavoError.from_rpc(refused.value)


@asynccontextmanager
async def engine(model: Path, script: Script, **settings: Any) -> AsyncIterator[Engine]:
    async with bench(model, script, **settings) as made, grpc.aio.insecure_channel(made.address) as channel:
        yield Engine(made, channel)


# --- Generating -----------------------------------------------------------------------------------------------------


def word_by_word(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    """ "ab", then "c"."""
    return [
        tokens(submission, ids("ab")),
        tokens(submission, ids("c"), position=2, reason=LENGTH),
        end(submission, prompt_tokens=3, cached_tokens=2),
    ]


async def test_a_stream_has_chunks_and_then_its_end(model: Path) -> None:
    async with engine(model, word_by_word) as made:
        responses = await made.generate(request(max_tokens=3, temperature=0.5, seed=7))
        submission = made.bench.submission
    assert unpack_int32(submission.prompt_token_ids) == ids("abc")
    assert (submission.request_id, submission.max_tokens) == ("r", 3)
    assert (submission.sampling.temperature, submission.sampling.seed) == (0.5, 7)
    *chunks, last = responses
    assert [token for each in chunks for token in each.chunk.token_ids] == ids("abc")
    assert all(each.chunk.completion_tokens == len(each.chunk.token_ids) for each in chunks)
    assert {each.chunk.prompt_tokens for each in chunks} == {3}
    complete = last.complete
    assert (list(complete.output_ids), complete.finish_reason) == (ids("abc"), "length")
    assert (complete.prompt_tokens, complete.completion_tokens, complete.cached_tokens) == (3, 3, 2)


async def test_without_streaming_there_is_only_the_end(model: Path) -> None:
    async with engine(model, word_by_word) as made:
        (response,) = await made.generate(request(stream=False))
    assert list(response.complete.output_ids) == ids("abc")


async def test_a_call_s_deadline_is_the_request_s(model: Path) -> None:
    async with engine(model, one_answer) as made:
        [response async for response in made.stub.Generate(request(), timeout=50)]
        assert 0 < made.bench.submission.timeout_us <= 60e6


async def test_a_text_is_tokenized(model: Path) -> None:
    async with engine(model, one_answer) as made:
        (response,) = await made.generate(vllm.GenerateRequest(request_id="r", text="abcd"))
        assert unpack_int32(made.bench.submission.prompt_token_ids) == ids("abcd")
    assert response.complete.prompt_tokens == 4


async def test_samples_are_told_apart_by_their_index(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [
            tokens(submission, ids("a"), index=1, reason=LENGTH),
            tokens(submission, ids("bc"), index=0, reason=STOP),
            end(submission, prompt_tokens=3),
        ]

    async with engine(model, script) as made:
        responses = await made.generate(request(n=2))
    chunks = {each.chunk.index: list(each.chunk.token_ids) for each in responses if each.HasField("chunk")}
    assert chunks == {0: ids("bc"), 1: ids("a")}
    completes = [each.complete for each in responses if each.HasField("complete")]
    assert [(each.index, each.finish_reason) for each in completes] == [(0, "stop"), (1, "length")]


async def test_log_probabilities_come_with_their_tokens(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        message = tokens(submission, ids("ab"), reason=LENGTH, logprobs=[-0.5, -1.5])
        for each in message.updates[0].logprobs:
            each.top_token_ids[:], each.top_logprobs[:] = [7, 8], [-0.25, -0.75]
        return [message, end(submission)]

    async with engine(model, script) as made:
        chunk, last = await made.generate(request(logprobs=2))
        assert made.bench.submission.sampling.logprobs == 2
    for logprobs in (chunk.chunk.output_logprobs, last.complete.output_logprobs):
        assert list(logprobs.token_logprobs) == [-0.5, -1.5]
        assert list(logprobs.token_ids) == ids("ab")
        assert [(list(top.token_ids), list(top.values)) for top in logprobs.top_logprobs] == [
            ([7, 8], [-0.25, -0.75])
        ] * 2


@pytest.mark.parametrize(
    ("stops", "min_tokens", "text", "matched"),
    [
        (["two", "end", "nd"], 0, "one,end", "end"),
        (["one", "end"], 5, "one,end", "end"),
        (["ö"], 0, "one,end,ö", "ö"),
    ],
)
async def test_a_stop_string_ends_the_answer_and_is_named(
    model: Path, stops: list[str], min_tokens: int, text: str, matched: str
) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [tokens(submission, [*ids("one,end,"), *O_UMLAUT, *ids("two")]), end(submission)]

    async with engine(model, script) as made:
        (response,) = await made.generate(request(stream=False, stop=stops, min_tokens=min_tokens))
        assert [abort.sequence_index for abort in made.bench.kvmanager.aborts] == [0]
    assert text_of(response.complete.output_ids) == text
    assert (response.complete.finish_reason, response.complete.matched_stop_str) == ("stop", matched)


async def test_a_stop_token_is_named_but_not_the_model_s_own(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [tokens(submission, ids("ab"), reason=STOP), end(submission)]

    async with engine(model, script) as made:
        (named,) = await made.generate(request(stream=False, stop_token_ids=ids("b")))
        (other,) = await made.generate(request(stream=False, stop_token_ids=ids("c")))
    assert (named.complete.WhichOneof("matched_stop"), named.complete.matched_token_id) == (
        "matched_token_id",
        *ids("b"),
    )
    assert other.complete.WhichOneof("matched_stop") is None


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(ALPHABET[token_id] for token_id in token_ids).replace("Ã¶", "ö")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (request(temperature=-1), "sampling_params.temperature"),
        (request(logprobs=-1), "sampling_params.logprobs"),
        (request(n=2**31), "sampling_params.n"),
        (request(prompt_logprobs=1), "sampling_params.prompt_logprobs"),
        (request(max_tokens=2**32 - 1), "sampling_params.max_tokens"),
        (request(json_schema="["), "sampling_params.json_schema"),
        (request(regex="(", min_tokens=0), "sampling_params.regex"),
        (request(grammar=""), "sampling_params.grammar"),
        (request(choice=vllm.ChoiceConstraint(choices=["a", ""])), "sampling_params.choice.choices[1]"),
        (request(structural_tag="{}"), "sampling_params.structural_tag"),
        (request(prompt=""), "tokenized.input_ids"),
        (request(prompt="a" * 64), "tokenized"),
        (
            vllm.GenerateRequest(request_id="r", tokenized=vllm.TokenizedInput(input_ids=[5, 5000])),
            "tokenized.input_ids[1]",
        ),
        (vllm.GenerateRequest(request_id="r", text=""), "text"),
        (vllm.GenerateRequest(request_id="r"), "input"),
        (request(request_id=""), "request_id"),
        (request(request_id="x" * 200), "request_id"),
    ],
)
async def test_what_is_refused_is_named_as_the_protocol_calls_it(
    model: Path, message: vllm.GenerateRequest, field: str
) -> None:
    async with engine(model, one_answer) as made:
        error = await made.refused(message)
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert error.message.startswith(field)


async def test_a_refusal_says_when_to_try_again(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [refusal(submission, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL")]

    async with engine(model, script) as made:
        error = await made.refused(request())
    assert (error.status, error.reason, error.retry_after) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 1.5)


# --- Ending early ---------------------------------------------------------------------------------------------------


def first_word(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    """ "ab", of an answer that goes on."""
    return [tokens(submission, ids("ab"))]


def silence(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    return []


async def read_all(call: Any) -> list[vllm.GenerateResponse]:
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


async def test_an_aborted_stream_ends_with_what_there_is(model: Path) -> None:
    async with engine(model, first_word) as made:
        call = made.stub.Generate(request(n=2))
        assert list((await call.read()).chunk.token_ids) == ids("ab")
        await made.stub.Abort(vllm.AbortRequest(request_ids=["unknown", "r", "r"]))
        rest = await read_all(call)
        assert await call.code() is grpc.StatusCode.OK
        await eventually(lambda: made.bench.kvmanager.aborts)
        (abort,) = made.bench.kvmanager.aborts
        assert not abort.HasField("sequence_index")
    assert [(each.complete.index, each.complete.finish_reason) for each in rest] == [(0, "abort"), (1, "abort")]
    assert [list(each.complete.output_ids) for each in rest] == [ids("ab"), []]


async def test_a_request_can_be_aborted_before_its_first_token_and_asked_again(model: Path) -> None:
    async with engine(model, silence) as made:
        for number in range(2):
            reading = asyncio.ensure_future(read_all(made.stub.Generate(request(stream=False))))
            await eventually(lambda: len(made.bench.kvmanager.submissions) == number + 1)  # noqa: B023
            await made.stub.Abort(vllm.AbortRequest(request_ids=["r"]))
            (response,) = await reading
            assert response.complete.finish_reason == "abort"
        await eventually(lambda: len(made.bench.kvmanager.aborts) == 2)


async def test_a_client_that_leaves_ends_its_request(model: Path) -> None:
    async with engine(model, first_word) as made:
        call = made.stub.Generate(request())
        await call.read()
        call.cancel()
        await eventually(lambda: made.bench.kvmanager.aborts)


async def test_nobody_aborts_what_is_another_tenant_s(model: Path) -> None:
    acme, other = [("octavo-tenant", "acme")], [("octavo-tenant", "other")]
    async with engine(model, first_word, trusted_identity=True) as made:
        theirs = made.stub.Generate(request(), metadata=acme)
        await theirs.read()
        mine = made.stub.Generate(request(), metadata=other)
        await mine.read()
        await made.stub.Abort(vllm.AbortRequest(request_ids=["r"]), metadata=other)
        assert [each.complete.finish_reason for each in await read_all(mine)] == ["abort"]
        (submission,) = [each for each in made.bench.kvmanager.submissions if each.tenant == "acme"]
        made.bench.kvmanager.answer(
            submission, tokens(submission, ids("c"), position=2, reason=LENGTH), end(submission)
        )
        assert [each.complete.finish_reason for each in await read_all(theirs) if each.HasField("complete")] == [
            "length"
        ]


async def test_one_id_runs_once(model: Path) -> None:
    async with engine(model, first_word) as made:
        first = made.stub.Generate(request())
        await first.read()
        error = await made.refused(request())
        assert (error.status, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_EXISTS")
        await made.stub.Abort(vllm.AbortRequest(request_ids=["r"]))
        assert [each.complete.finish_reason for each in await read_all(first)] == ["abort"]


# --- What is served -------------------------------------------------------------------------------------------------


async def test_health_is_that_of_the_stack(model: Path) -> None:
    async with engine(model, one_answer) as made:
        assert (await made.stub.HealthCheck(vllm.HealthCheckRequest())).healthy
        made.bench.kvmanager.refusal = (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        made.bench.kvmanager.tell(
            kvmanager_pb2.AttachResponse(backend=kvmanager_pb2.BackendState(ready=False, model=MODEL))
        )

        async def unhealthy() -> bool:
            return not (await made.stub.HealthCheck(vllm.HealthCheckRequest())).healthy

        while not await unhealthy():
            await asyncio.sleep(0.005)


async def test_the_model_is_described_without_its_place(model: Path) -> None:
    async with engine(model, one_answer, model_name="served") as made:
        info = await made.stub.GetModelInfo(vllm.GetModelInfoRequest())
        server = await made.stub.GetServerInfo(vllm.GetServerInfoRequest())
    assert (info.model_path, info.served_model_name, info.is_generation) == ("served", "served", True)
    assert (info.max_context_length, info.vocab_size) == (MODEL.max_model_len, MODEL.vocab_size)
    assert str(model) not in str(info)
    assert (server.block_size, server.data_parallel_size, server.active_requests) == (MODEL.block_size, 1, 0)
    assert server.uptime_seconds > 0


async def test_loads_are_the_operator_s_to_see_and_a_tenant_s_own(model: Path) -> None:
    async with engine(model, first_word) as made:
        call = made.stub.Generate(request())
        await call.read()
        loads = await made.stub.GetLoads(vllm.GetLoadsRequest())
        assert (loads.dp_rank_count, len(loads.loads)) == (1, 1)
        assert loads.loads[0].num_waiting_uncached_tokens == 0, "it has its first token"
        server = await made.stub.GetServerInfo(vllm.GetServerInfoRequest())
        assert server.active_requests == 1
        await made.stub.Abort(vllm.AbortRequest(request_ids=["r"]))
        await read_all(call)
    async with engine(model, one_answer, trusted_identity=True) as made:
        for method, message in (
            (made.stub.GetLoads, vllm.GetLoadsRequest()),
            (made.stub.GetServerInfo, vllm.GetServerInfoRequest()),
            (made.stub.GetModelInfo, vllm.GetModelInfoRequest()),
            (made.stub.Abort, vllm.AbortRequest()),
        ):
            await method(message, metadata=[("octavo-tenant", "acme")])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(message)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await made.stub.HealthCheck(vllm.HealthCheckRequest())).healthy


async def test_the_tokenizer_comes_as_an_archive_with_a_fingerprint(model: Path) -> None:
    async with engine(model, one_answer) as made:
        parts = [part async for part in made.stub.GetTokenizer(common.GetTokenizerRequest())]
        again = [part async for part in made.stub.GetTokenizer(common.GetTokenizerRequest())]
    bundle = b"".join(part.data for part in parts)
    assert parts[-1].sha256 == hashlib.sha256(bundle).hexdigest()
    assert again == parts
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())


async def test_what_is_not_served_says_so(model: Path) -> None:
    async with engine(model, one_answer) as made:
        for method, message in (
            (made.stub.Embed, vllm.EmbedRequest()),
            (made.stub.FlushCache, common.FlushCacheRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(message)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "is not served here" in str(refused.value.details())


async def test_what_is_no_message_says_so(model: Path) -> None:
    async with engine(model, one_answer) as made:
        call = made.channel.unary_stream(f"/{package.SERVICE}/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            [each async for each in call(b"\x0a\x02\xff\xff")]
    error = OctavoError.from_rpc(refused.value)
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request_id")


async def listed_services(channel: grpc.aio.Channel) -> set[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    (response,) = [
        each
        async for each in stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    ]
    return {service.name for service in response.list_services_response.service}


async def test_reflection_lists_the_service(model: Path) -> None:
    async with engine(model, one_answer) as made:
        assert package.SERVICE in await listed_services(made.channel)


async def test_without_its_messages_a_gateway_serves_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(package.importlib.util, "find_spec", lambda name: None)
    async with engine(model, one_answer) as made:
        assert await made.bench.ask()
        assert package.SERVICE not in await listed_services(made.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.stub.HealthCheck(vllm.HealthCheckRequest())
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert sum("smg-grpc-proto is not installed" in record.message for record in caplog.records) == 1
