"""The gateway's process between a real client and a KV manager that does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from octavo.client import AsyncClient, OctavoError, Segment
from octavo.v1 import common_pb2, inference_pb2, inference_pb2_grpc, kvmanager_pb2
from services.config import ConfigError, GatewayConfig
from services.rpc.columns import unpack_int32
from tests.services.gateway.gateway_bench import LENGTH, STOP, Bench, bench, ids, one_answer, save_bytes_tokenizer
from tests.services.scripted_kvmanager import (
    columns,
    end,
    eventually,
    progress,
    refusal,
    tokens,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes_tokenizer(tmp_path_factory.mktemp("model"))


# --- What the KV manager gets ---------------------------------------------------------------------------------------


async def test_everything_that_was_asked_for_arrives(model: Path) -> None:
    async with bench(model, one_answer) as here:
        await here.ask(
            "abc",
            request_id="mine",
            timeout=20,
            priority=-7,
            cache_scope="app",
            report_progress=True,
            n=2,
            max_tokens=9,
            min_tokens=1,
            temperature=0.5,
            seed=3,
            logprobs=4,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            repetition_penalty=1.5,
            logit_bias={5: -100.0, 6: 2.0},
            stop_token_ids=[7],
        )
        sent = here.submission
    assert unpack_int32(sent.prompt_token_ids) == ids("abc")
    assert (sent.request_id, sent.priority, sent.report_progress, sent.tenant) == ("mine", -7, True, "default")
    assert (sent.n, sent.max_tokens, sent.min_tokens, list(sent.stop_token_ids)) == (2, 9, 1, [7])
    assert 0 < sent.timeout_us <= 20_000_000
    (span,) = sent.spans
    assert (span.num_tokens, span.narrowness, span.owner) == (3, 2, "default")
    sampling = sent.sampling
    assert (sampling.temperature, sampling.seed, sampling.logprobs) == (0.5, 3, 4)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.5)
    assert dict(sampling.logit_bias) == {5: -100.0, 6: 2.0}
    assert sent.best_of == 0
    assert not sent.HasField("beam_search")
    assert not sent.HasField("pin")


async def test_what_was_not_asked_for_has_its_default(model: Path) -> None:
    async with bench(model, one_answer) as here:
        await here.ask()
        sent = here.submission
    assert (sent.n, sent.best_of, sent.priority, sent.report_progress, sent.timeout_us) == (1, 0, 0, False, 0)
    sampling = sent.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    (span,) = sent.spans
    assert (span.num_tokens, span.narrowness, span.owner) == (3, 1, "default")


@pytest.mark.parametrize(
    ("stopping", "number"),
    [
        (None, common_pb2.EARLY_STOPPING_HEURISTIC),
        (False, common_pb2.EARLY_STOPPING_HEURISTIC),
        (True, common_pb2.EARLY_STOPPING_FIRST),
        ("never", common_pb2.EARLY_STOPPING_NEVER),
    ],
)
async def test_beam_search(model: Path, stopping: bool | str | None, number: int) -> None:
    async with bench(model, one_answer) as here:
        await here.ask(beam_width=4, n=2, length_penalty=0.5, early_stopping=stopping, temperature=0.0)
        sent = here.submission
    assert sent.n == 2
    assert (sent.beam_search.width, sent.beam_search.length_penalty) == (4, 0.5)
    assert sent.beam_search.early_stopping == number


async def test_segments_become_spans(model: Path) -> None:
    async with bench(model, one_answer, shared_namespaces="docs=default") as here:
        await here.ask([Segment("aaaa", "shared:docs"), "bbb", Segment("cc", "request")])
        sent = here.submission
    assert [(span.num_tokens, span.narrowness, span.owner) for span in sent.spans] == [
        (4, 0, "shared:docs"),
        (3, 1, "default"),
        (2, 3, "default"),
    ]
    assert len({span.salt for span in sent.spans}) == 3


# --- Who is asking --------------------------------------------------------------------------------------------------


async def spans_of(here: Bench, metadata: list[tuple[str, str]], scope: str = "app") -> kvmanager_pb2.Submission:
    """What the KV manager gets of a call with that metadata."""
    here.kvmanager.submissions.clear()
    async with grpc.aio.insecure_channel(here.address) as channel:
        call = channel.unary_stream(
            "/octavo.v1.GenerationService/Generate",
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        kinds = {"app": inference_pb2.CacheScope(app=inference_pb2.AppScope())}
        request = inference_pb2.GenerateRequest(
            prompt=inference_pb2.Prompt(text="abc"),
            cache_scope=kinds.get(scope, inference_pb2.CacheScope(shared=scope)),
        )
        try:
            async for _ in call(request, metadata=metadata):
                pass
        except grpc.RpcError as error:
            raise OctavoError.from_rpc(error) from error
    return here.submission


async def test_a_caller_s_word_on_who_it_is_counts_for_nothing(model: Path) -> None:
    async with bench(model, one_answer) as here:
        plain = await spans_of(here, [])
        claimed = await spans_of(here, [("octavo-tenant", "acme"), ("octavo-app", "search")])
    assert plain.tenant == claimed.tenant == "default"
    assert plain.spans == claimed.spans


async def test_a_trusted_proxy_s_word_counts(model: Path) -> None:
    async with bench(model, one_answer, trusted_identity=True) as here:
        first = await spans_of(here, [("octavo-tenant", "acme"), ("octavo-app", "search")])
        again = await spans_of(here, [("octavo-tenant", "acme"), ("octavo-app", "search")])
        app = await spans_of(here, [("octavo-tenant", "acme"), ("octavo-app", "mail")])
        tenant = await spans_of(here, [("octavo-tenant", "beta"), ("octavo-app", "search")])
        no_app = await spans_of(here, [("octavo-tenant", "acme")])
    assert (first.tenant, first.spans[0].owner) == ("acme", "acme")
    assert first.spans == again.spans
    assert len({each.spans[0].salt for each in (first, app, tenant, no_app)}) == 4


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([], "has no octavo-tenant"),
        ([("octavo-app", "search")], "has no octavo-tenant"),
        ([("octavo-tenant", "acme"), ("octavo-tenant", "beta")], "more than one octavo-tenant"),
        ([("octavo-tenant", "acme"), ("octavo-tenant", "acme")], "more than one octavo-tenant"),
        ([("octavo-tenant", "")], "octavo-tenant .*1 to 64"),
        ([("octavo-tenant", "a b")], "octavo-tenant .*1 to 64"),
        ([("octavo-tenant", "shared:docs")], "octavo-tenant .*1 to 64"),
        ([("octavo-tenant", "x" * 65)], "octavo-tenant .*1 to 64"),
        ([("octavo-tenant", "acme"), ("octavo-app", "a/b")], "octavo-app .*1 to 64"),
    ],
)
async def test_without_a_clear_identity_nothing_is_done(
    model: Path, metadata: list[tuple[str, str]], message: str
) -> None:
    async with bench(model, one_answer, trusted_identity=True) as here:
        with pytest.raises(OctavoError, match=message) as caught:
            await spans_of(here, metadata)
        assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
        assert here.kvmanager.submissions == []


async def test_only_who_joined_a_namespace_shares_in_it(model: Path) -> None:
    async with bench(model, one_answer, trusted_identity=True, shared_namespaces="docs=acme,beta; law=acme;") as here:
        acme = await spans_of(here, [("octavo-tenant", "acme")], "docs")
        beta = await spans_of(here, [("octavo-tenant", "beta")], "docs")
        assert acme.spans == beta.spans
        assert acme.spans[0].owner == "shared:docs"
        for namespace in ("law", "nothing"):
            with pytest.raises(OctavoError, match=f"has not joined .*'{namespace}'") as caught:
                await spans_of(here, [("octavo-tenant", "beta")], namespace)
            assert caught.value.status is grpc.StatusCode.PERMISSION_DENIED
            assert (caught.value.field, caught.value.reason) == ("cache_scope.shared", "NAMESPACE_NOT_JOINED")


@pytest.mark.parametrize(
    "text", ["docs", "docs=", "=acme", "docs=acme,", "docs=a;b=", "do:cs=acme", "docs=a b=c", "d=acme;d=beta"]
)
def test_namespaces_that_are_not_written_so(text: str) -> None:
    with pytest.raises(ConfigError, match=r"shared_namespaces: .*NAME=TENANT,TENANT"):
        GatewayConfig(model="m", shared_namespaces=text)


async def test_request_ids_are_each_tenant_s_own(model: Path) -> None:
    def unanswered(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [] if submission.tenant == "acme" else one_answer(submission)

    async with (
        bench(model, unanswered, trusted_identity=True) as here,
        AsyncClient(here.address, metadata={"octavo-tenant": "acme"}) as acme,
        AsyncClient(here.address, metadata={"octavo-tenant": "beta"}) as beta,
    ):
        waiting = asyncio.ensure_future(anext(acme.generate("abc", request_id="one")))
        await eventually(lambda: here.kvmanager.submissions)
        assert [response async for response in beta.generate("abc", request_id="one")]
        with pytest.raises(OctavoError) as caught:
            await anext(acme.generate("abc", request_id="one"))
        assert caught.value.status is grpc.StatusCode.ALREADY_EXISTS
        waiting.cancel()


# --- What clients get -----------------------------------------------------------------------------------------------


async def test_usage_says_what_was_cached_and_why_no_more(model: Path) -> None:
    async with bench(model, one_answer) as here:
        (response,) = await here.ask()
    assert response.usage == common_pb2.Usage(
        prompt_tokens=3, completion_tokens=2, cached_tokens=2, prefix_match_end=common_pb2.PREFIX_MATCH_END_EVICTED
    )
    assert not response.HasField("score")
    assert not response.HasField("progress")


async def test_progress_only_grows(model: Path) -> None:
    """Though a prompt that was preempted is computed again."""

    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        told = [progress(submission, computed) for computed in (1, 2, 1, 2, 3)]
        return [*told, tokens(submission, ids("a"), reason=STOP), end(submission)]

    async with bench(model, script) as here:
        *told, _ = await here.ask(report_progress=True)
    computed = [response.progress.computed_tokens for response in told]
    assert computed == sorted(set(computed))  # what came while another was being sent is told with the next
    assert computed[-1] == 3


async def test_progress_comes_alone_and_before_the_first_token(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [
            progress(submission, 2),
            tokens(submission, ids("a")),
            progress(submission, 2),
            tokens(submission, ids("b"), position=1, reason=STOP),
            end(submission),
        ]

    async with bench(model, script) as here:
        first, *rest = await here.ask(report_progress=True, request_id="mine")
    expected = inference_pb2.PrefillProgress(computed_tokens=2, prompt_tokens=3)
    assert first == inference_pb2.GenerateResponse(request_id="mine", progress=expected)
    assert "".join(response.text for response in rest) == "ab"
    assert not any(response.HasField("progress") for response in rest)


async def test_plain_tokens_of_many_sequences_come_as_columns(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        steps = [
            columns(submission, [(index, position, token)])
            for position, pair in enumerate(zip(ids("abc"), ids("cab"), strict=True))
            for index, token in enumerate(pair)
        ]
        last = [tokens(submission, ids("b"), index=index, position=3, reason=STOP) for index in range(2)]
        return [*steps, *last, end(submission)]

    async with bench(model, script) as here:
        responses = await here.ask(n=2)
    texts = {0: "", 1: ""}
    for response in responses:
        assert response.position == len(texts[response.sequence_index])
        assert len(response.token_ids) == len(response.text)
        texts[response.sequence_index] += response.text
    assert texts == {0: "abcb", 1: "cabb"}


async def test_tokens_of_an_interval_come_as_one_response(model: Path) -> None:
    """The first one comes at once, and so does the end."""

    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        steps = [columns(submission, [(0, position, token)]) for position, token in enumerate(ids("abc"))]
        return [*steps, tokens(submission, ids("d"), position=3, reason=STOP), end(submission)]

    async with bench(model, script) as here:
        first, last = await here.ask(response_interval=60)
    assert (first.position, first.text, last.position, last.text) == (0, "a", 1, "bcd")
    assert (last.finish_reason, last.usage.completion_tokens) == (STOP, 4)


async def test_the_kv_manager_learns_for_how_long_tokens_may_wait(model: Path) -> None:
    """What is computed beyond a stop string is lost, so tokens that are looked through wait nowhere on their way."""
    async with bench(model, one_answer) as here:
        for asked in (
            {},
            {"response_interval": 0.5},
            {"response_interval": 0.5, "stop": ["x"]},
            {"response_interval": 1},
        ):
            await here.ask(**asked)
    assert here.kvmanager.token_intervals == [20_000, 500_000, 0, 1_000_000]


async def test_those_who_are_left_need_not_wait_for_as_long_as_many_did(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [] if submission.request_id == "stays" else one_answer(submission)

    async with bench(model, script, max_responses_per_second=20) as here:
        staying = asyncio.ensure_future(here.ask(request_id="stays"))
        await eventually(lambda: here.kvmanager.submissions)
        await asyncio.gather(*(here.ask() for _ in range(3)))
        await eventually(lambda: here.kvmanager.token_intervals[-1] == 50_000)
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)


async def test_columns_that_make_no_sense_end_the_requests(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        message = columns(submission, [(0, 0, 1)])
        message.tokens.token_ids = b""
        return [message]

    async with bench(model, script) as here:
        with pytest.raises(OctavoError) as error:
            await here.ask()
        assert error.value.status is grpc.StatusCode.UNAVAILABLE
        here.kvmanager.script = one_answer
        await here.wait_until_ready()
        assert "".join(response.text for response in await here.ask()) == "ab"


@pytest.mark.parametrize("sampling", [{"beam_width": 3, "n": 2}, {"best_of": 3, "n": 2}])
async def test_ranked_sequences_come_whole_with_their_scores(model: Path, sampling: dict[str, int]) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [
            tokens(submission, ids("ab"), index=0, reason=STOP, score=-0.25),
            tokens(submission, ids("abc"), index=1, reason=LENGTH, score=-1.5),
            end(submission, completion_tokens=99),
        ]

    async with bench(model, script) as here:
        best, second = await here.ask(**sampling)
        assert here.submission.best_of == sampling.get("best_of", 0)
        assert here.kvmanager.aborts == []
    assert (best.sequence_index, best.text, best.score, best.finish_reason) == (0, "ab", -0.25, STOP)
    assert (second.sequence_index, second.text, second.score, second.finish_reason) == (1, "abc", -1.5, LENGTH)
    assert not best.HasField("usage")
    assert second.usage.completion_tokens == 5


async def test_fewer_beams_than_wanted_are_an_answer_too(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [tokens(submission, ids("ab"), reason=STOP, score=-0.25), end(submission)]

    async with bench(model, script) as here:
        (only,) = await here.ask(beam_width=3, n=2)
    assert (only.text, only.HasField("usage")) == ("ab", True)


async def test_the_best_of_sequences_that_end_at_a_stop_string(model: Path) -> None:
    """They are ranked by what comes before it, and each is ended as soon as it is found."""

    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [
            tokens(submission, ids("aa"), index=0, logprobs=[-1.0, -1.0]),
            tokens(submission, ids("abc"), index=1, logprobs=[-0.1, -0.1, -0.1]),
            tokens(submission, ids("ab"), index=2, logprobs=[-0.2, -0.2]),
            tokens(submission, ids("cb"), index=1, position=3, logprobs=[-50.0, -50.0], reason=LENGTH),
            tokens(submission, ids("a"), index=0, position=2, logprobs=[-1.0], reason=LENGTH),
            tokens(submission, ids("a"), index=2, position=2, logprobs=[-0.2], reason=STOP),
            end(submission),
        ]

    async with bench(model, script) as here:
        best, second = await here.ask(best_of=3, n=2, stop=["c"])
        assert (here.submission.n, here.submission.best_of, here.submission.sampling.logprobs) == (3, 0, 0)
        await eventually(lambda: here.kvmanager.aborts)
        (abort,) = here.kvmanager.aborts
        assert abort.sequence_index == 1
    assert (best.sequence_index, best.text, list(best.token_ids)) == (0, "ab", ids("abc"))
    assert best.score == pytest.approx(-0.1)
    assert (second.sequence_index, second.text, second.finish_reason) == (1, "aba", STOP)
    assert second.score == pytest.approx(-0.2)
    assert list(best.logprobs) == []
    assert second.usage.completion_tokens == 6


@pytest.mark.parametrize("stop", [[], ["c"]])
async def test_log_probabilities_of_the_best_sequences_where_wanted(model: Path, stop: list[str]) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        answers = [
            tokens(submission, ids("a"), index=index, logprobs=[-1.0 - index], reason=LENGTH) for index in (1, 0)
        ]
        return [*answers, end(submission)]

    async with bench(model, script) as here:
        (best,) = await here.ask(best_of=2, stop=stop, logprobs=0)
    assert [each.logprob for each in best.logprobs] == [-1.0]


async def test_lost_tokens_are_an_error_and_no_gap(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [tokens(submission, ids("a")), tokens(submission, ids("b"), position=5, reason=LENGTH)]

    async with bench(model, script) as here:
        with pytest.raises(OctavoError, match="internal error") as caught:
            await here.ask()
        assert caught.value.status is grpc.StatusCode.INTERNAL
        # The KV manager is told that nobody waits any more.
        await eventually(lambda: here.kvmanager.aborts)


# --- Pins -----------------------------------------------------------------------------------------------------------


async def test_a_pin_from_its_beginning_to_its_end(model: Path) -> None:
    async with bench(model, one_answer) as here:
        pin = await here.client.pin("abcabcabc", ttl=3600, cache_scope="app", timeout=20)
        sent = here.submission
        assert unpack_int32(sent.prompt_token_ids) == ids("abcabcabc")
        assert (sent.pin.pin_id, sent.pin.ttl_us, sent.n) == (pin.pin_id, 3_600_000_000, 1)
        assert 0 < sent.timeout_us <= 20_000_000
        assert sent.spans[0].narrowness == 2
        assert len(pin.pin_id) == 32
        assert (pin.pinned_tokens, pin.pinned_blocks, pin.resident) == (8, 2, True)
        assert pin.remaining.ToSeconds() == 3600
        assert await here.client.pins() == [pin]
        await here.client.unpin(pin)
        assert await here.client.pins() == []
        with pytest.raises(OctavoError, match="no such pin") as caught:
            await here.client.unpin(pin.pin_id)
        assert (caught.value.status, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "pin_id")
        assert here.kvmanager.aborts == []


async def test_the_usage_of_a_pin(model: Path) -> None:
    async with bench(model, one_answer) as here, grpc.aio.insecure_channel(here.address) as channel:
        call = channel.unary_unary(
            "/octavo.v1.GenerationService/PinPrefix",
            request_serializer=inference_pb2.PinPrefixRequest.SerializeToString,
            response_deserializer=inference_pb2.PinPrefixResponse.FromString,
        )
        request = inference_pb2.PinPrefixRequest(prompt=inference_pb2.Prompt(text="abcab"))
        request.ttl.FromSeconds(60)
        assert (await call(request)).usage.prompt_tokens == 3


async def test_pins_are_each_tenant_s_own(model: Path) -> None:
    async with (
        bench(model, one_answer, trusted_identity=True) as here,
        AsyncClient(here.address, metadata={"octavo-tenant": "acme"}) as acme,
        AsyncClient(here.address, metadata={"octavo-tenant": "beta"}) as beta,
    ):
        pin = await acme.pin("abcabcabc", ttl=60)
        assert await beta.pins() == []
        with pytest.raises(OctavoError, match="no such pin"):
            await beta.unpin(pin)
        assert await acme.pins() == [pin]


async def test_a_pin_that_is_refused(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [refusal(submission, grpc.StatusCode.RESOURCE_EXHAUSTED, "too little memory", "NO_ROOM")]

    async with bench(model, script) as here:
        with pytest.raises(OctavoError, match="too little memory") as caught:
            await here.client.pin("abcabcabc", ttl=60)
        assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (caught.value.reason, caught.value.retry_after) == ("NO_ROOM", 1.5)


async def test_a_client_that_leaves_while_its_pin_is_computed(model: Path) -> None:
    async with bench(model, lambda submission: []) as here:
        waiting = asyncio.ensure_future(here.client.pin("abcabcabc", ttl=60))
        await eventually(lambda: here.kvmanager.submissions)
        waiting.cancel()
        await eventually(lambda: here.kvmanager.aborts)
        (abort,) = here.kvmanager.aborts
        assert (abort.handle, abort.HasField("sequence_index")) == (here.submission.handle, False)


async def test_a_pin_that_nobody_heard_of_is_let_go(model: Path) -> None:
    async with bench(model, one_answer) as here:
        here.kvmanager.broken = grpc.StatusCode.INTERNAL
        with pytest.raises(OctavoError, match="internal error") as caught:
            await here.client.pin("abcabcabc", ttl=60)
        assert caught.value.status is grpc.StatusCode.INTERNAL
        await eventually(lambda: here.kvmanager.unpinned)
        assert here.kvmanager.unpinned == [("default", here.submission.pin.pin_id)]
        assert here.kvmanager.pins == {"default": {}}


async def test_a_kv_manager_that_does_not_answer_is_away(model: Path) -> None:
    async with bench(model, one_answer) as here:
        here.kvmanager.broken = grpc.StatusCode.UNAVAILABLE
        with pytest.raises(OctavoError, match="KV manager can't be reached") as caught:
            await here.client.pins()
        assert (caught.value.status, caught.value.from_server) == (grpc.StatusCode.UNAVAILABLE, True)
        assert caught.value.retry_after is not None


# --- What a client can send wrongly ---------------------------------------------------------------------------------


def with_scope(prompt: inference_pb2.Prompt) -> inference_pb2.Prompt:
    """The last segment has a scope that is none."""
    prompt.segmented.segments[-1].cache_scope.SetInParent()
    return prompt


def segmented(*segments: inference_pb2.Segment) -> inference_pb2.Prompt:
    return inference_pb2.Prompt(segmented=inference_pb2.SegmentedPrompt(segments=segments))


TEXT = inference_pb2.Segment(text="abc")
MESSAGE = inference_pb2.Segment(message=inference_pb2.ChatMessage(role="user", content="abc"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda request: setattr(request, "priority", 101), "priority"),
        (lambda request: request.cache_scope.SetInParent(), "cache_scope"),
        (lambda request: setattr(request.cache_scope, "shared", ""), "cache_scope.shared"),
        (lambda request: request.prompt.CopyFrom(segmented()), "prompt.segmented.segments"),
        (lambda request: request.prompt.CopyFrom(segmented(inference_pb2.Segment())), "prompt.segmented.segments[0]"),
        (lambda request: request.prompt.CopyFrom(segmented(TEXT, MESSAGE)), "prompt.segmented.segments[1]"),
        (lambda request: request.prompt.CopyFrom(segmented(MESSAGE)), "prompt.segmented"),
        (
            lambda request: request.prompt.CopyFrom(with_scope(segmented(TEXT, TEXT))),
            "prompt.segmented.segments[1].cache_scope",
        ),
        (lambda request: setattr(request.sampling, "best_of", 65), "sampling.best_of"),
        (lambda request: setattr(request.sampling, "beam_width", 0), "sampling.beam_width"),
        (lambda request: setattr(request.sampling, "length_penalty", 1.0), "sampling.length_penalty"),
        (lambda request: setattr(request.sampling, "early_stopping", 1), "sampling.early_stopping"),
        (lambda request: setattr(request.sampling, "early_stopping", 9), "sampling.early_stopping"),
        (lambda request: setattr(request.sampling, "presence_penalty", 2.5), "sampling.presence_penalty"),
        (lambda request: request.sampling.logit_bias.update({1000: 1.0}), "sampling.logit_bias[1000]"),
        (lambda request: request.sampling.logit_bias.update({1: float("nan")}), "sampling.logit_bias[1]"),
    ],
)
async def test_the_field_at_fault_is_named(
    model: Path, change: Callable[[inference_pb2.GenerateRequest], object], field: str
) -> None:
    async with bench(model, one_answer) as here, grpc.aio.insecure_channel(here.address) as channel:
        call = channel.unary_stream(
            "/octavo.v1.GenerationService/Generate",
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        request = inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="abc"))
        change(request)
        with pytest.raises(grpc.RpcError) as caught:
            await call(request).read()
        error = OctavoError.from_rpc(caught.value)
        assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert here.kvmanager.submissions == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"prompt": "abcabcabc", "ttl": 0.5}, "ttl"),
        ({"prompt": "abcabcabc", "ttl": 31 * 86400}, "ttl"),
        ({"prompt": "abcabcabc", "ttl": 60, "timeout": -1}, "timeout"),
        ({"prompt": "abc", "ttl": 60}, "prompt.text"),
        ({"prompt": "a" * 64, "ttl": 60}, "prompt.text"),
        ({"prompt": "abcabcabc", "ttl": 60, "cache_scope": "request"}, "cache_scope"),
    ],
)
async def test_pins_that_cannot_be(model: Path, arguments: dict[str, Any], field: str) -> None:
    async with bench(model, one_answer) as here:
        with pytest.raises(OctavoError) as caught:
            await here.client.pin(**arguments)
        assert (caught.value.status, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert here.kvmanager.submissions == []


async def test_a_refusal_that_quotes_much_still_arrives(model: Path) -> None:
    async with bench(model, one_answer) as here:
        with pytest.raises(OctavoError, match=r"only .* is served here, not '日日") as caught:
            await here.ask(model="日" * 100_000)
        assert (caught.value.status, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "model")


async def test_pins_without_a_name_or_of_another_model(model: Path) -> None:
    async with bench(model, one_answer) as here:
        with pytest.raises(OctavoError, match="pin_id: must not be empty") as caught:
            await here.client.unpin("")
        assert (caught.value.status, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "pin_id")
        with pytest.raises(OctavoError) as caught:
            await here.client.pin("abcabcabc", ttl=60, model="gpt-7")
        assert (caught.value.status, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "model")


# --- Clients that are slow ------------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_holds_up_nobody(model: Path) -> None:
    """What it leaves lying is kept as a few long responses, and it gets all of it when it reads at last."""
    text = ids("abcdefghij") * 100
    num_steps = 400

    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return one_answer(submission) if submission.request_id == "fast" else []

    little_room = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 14)]
    async with bench(model, script) as here, grpc.aio.insecure_channel(here.address, little_room) as channel:
        slow = inference_pb2_grpc.GenerationServiceStub(channel).Generate(
            inference_pb2.GenerateRequest(
                request_id="slow", prompt=inference_pb2.Prompt(text="abc"), response_interval=Duration()
            )
        )
        await eventually(lambda: here.kvmanager.submissions)
        submission = here.submission
        for step in range(num_steps):
            here.kvmanager.tell(tokens(submission, text, position=step * len(text)))
            if step % 10 == 0:
                assert (await here.ask(request_id="fast"))[-1].text == "ab"
        here.kvmanager.tell(tokens(submission, ids("z"), position=num_steps * len(text), reason=STOP), end(submission))
        responses = [response async for response in slow]
    assert len(responses) < num_steps
    assert "".join(response.text for response in responses) == "abcdefghij" * 100 * num_steps + "z"
    assert responses[-1].usage.completion_tokens == num_steps * len(text) + 1
