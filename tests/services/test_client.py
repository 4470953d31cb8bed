"""The Python client against a real server in this process."""

import asyncio
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import grpc
import pytest

from octavo.client import AsyncClient, Client, OctavoError, Segment
from octavo.v1 import common_pb2, inference_pb2
from tests.services.scripted_server import ScriptedGeneration, running


@pytest.fixture
def servicer() -> ScriptedGeneration:
    return ScriptedGeneration()


@pytest.fixture
def address(servicer: ScriptedGeneration) -> Iterator[str]:
    with running(servicer) as address:
        yield address


def test_text_is_streamed(address: str) -> None:
    with Client(address) as client:
        responses = list(client.generate("to be or not"))
    assert [response.text for response in responses] == ["to ", "be ", "or ", "not "]
    assert responses[-1].usage.completion_tokens == 4


def test_what_was_asked_for_arrives(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address) as client:
        answer = client.generate(
            [1, 2], model="parrot", timeout=2.5, request_id="mine", n=2, temperature=0.0, stop=["."], seed=None
        )
        assert {response.sequence_index for response in answer} == {0, 1}
    (request,) = servicer.requests
    assert list(request.prompt.tokens.token_ids) == [1, 2]
    assert (request.model, request.request_id) == ("parrot", "mine")
    assert request.timeout.ToMilliseconds() == 2500
    assert request.sampling.HasField("temperature")
    assert request.sampling.temperature == 0.0
    assert not request.sampling.HasField("seed")
    assert list(request.sampling.stop) == ["."]


def test_messages_are_a_chat(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address) as client:
        list(client.generate([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]))
    messages = servicer.requests[0].prompt.chat.messages
    assert [(message.role, message.content) for message in messages] == [("system", "be brief"), ("user", "hello")]


def test_how_a_request_is_scheduled_and_shared_arrives(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address) as client:
        list(client.generate("x", priority=-3, cache_scope="app", report_progress=True, response_interval=1.5))
        list(client.generate("x"))
    asked, plain = servicer.requests
    assert (asked.priority, asked.cache_scope.WhichOneof("scope"), asked.report_progress) == (-3, "app", True)
    assert (plain.priority, plain.HasField("cache_scope"), plain.report_progress) == (0, False, False)
    assert asked.response_interval.ToMilliseconds() == 1500
    assert not plain.HasField("response_interval")


def test_scopes_by_name(address: str, servicer: ScriptedGeneration) -> None:
    given = inference_pb2.CacheScope(app=inference_pb2.AppScope())
    with Client(address) as client:
        for scope in ("request", "app", "tenant", "shared:docs", given):
            list(client.generate("x", cache_scope=scope))
        for name in ("everybody", "shared", "", "Tenant"):
            with pytest.raises(ValueError, match="request, app, tenant or shared:NAME"):
                client.generate("x", cache_scope=name)
    scopes = [request.cache_scope for request in servicer.requests]
    assert [scope.WhichOneof("scope") for scope in scopes] == ["request", "app", "tenant", "shared", "app"]
    assert scopes[3].shared == "docs"


@pytest.mark.parametrize(
    ("parts", "kinds", "scopes"),
    [
        ([Segment("a", "app"), "b"], ["text", "text"], ["app", None]),
        (
            [{"role": "system", "content": "a"}, Segment({"role": "user", "content": "b"}, "request")],
            ["message", "message"],
            [None, "request"],
        ),
        ([Segment([1, 2], "shared:docs"), Segment([3])], ["tokens", "tokens"], ["shared", None]),
    ],
)
def test_segments(
    address: str, servicer: ScriptedGeneration, parts: list[Any], kinds: list[str], scopes: list[str | None]
) -> None:
    with Client(address) as client:
        list(client.generate(parts))
    segments = servicer.requests[0].prompt.segmented.segments
    assert [segment.WhichOneof("content") for segment in segments] == kinds
    assert [segment.cache_scope.WhichOneof("scope") for segment in segments] == scopes
    assert [segment.HasField("cache_scope") for segment in segments] == [scope is not None for scope in scopes]


def test_beams_have_scores(address: str) -> None:
    with Client(address) as client:
        responses = list(client.generate("hello", beam_width=4, n=2))
    assert [(response.sequence_index, response.score) for response in responses] == [(0, -0.25), (1, -1.25)]


@pytest.mark.parametrize(
    ("stopping", "number"),
    [
        (True, common_pb2.EARLY_STOPPING_FIRST),
        (False, common_pb2.EARLY_STOPPING_HEURISTIC),
        ("first", common_pb2.EARLY_STOPPING_FIRST),
        ("heuristic", common_pb2.EARLY_STOPPING_HEURISTIC),
        ("never", common_pb2.EARLY_STOPPING_NEVER),
        (common_pb2.EARLY_STOPPING_NEVER, common_pb2.EARLY_STOPPING_NEVER),
        (None, common_pb2.EARLY_STOPPING_UNSPECIFIED),
    ],
)
def test_early_stopping(address: str, servicer: ScriptedGeneration, stopping: object, number: int) -> None:
    with Client(address) as client:
        list(client.generate("x", beam_width=2, early_stopping=stopping))
    assert servicer.requests[0].sampling.early_stopping == number


def test_unknown_early_stopping_is_refused_before_anything_is_sent(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address) as client, pytest.raises(ValueError, match="heuristic, first or never, not 'soon'"):
        client.generate("x", beam_width=2, early_stopping="soon")
    assert servicer.requests == []


class _Person:
    """As pydantic's models are asked."""

    @staticmethod
    def model_json_schema() -> dict[str, object]:
        return {"type": "object"}


@pytest.mark.parametrize(
    ("given", "guide"),
    [
        ({"json_schema": {"type": "object"}}, common_pb2.Guide(json_schema='{"type": "object"}')),
        ({"json_schema": '{"type":"object"}'}, common_pb2.Guide(json_schema='{"type":"object"}')),
        ({"json_schema": _Person}, common_pb2.Guide(json_schema='{"type": "object"}')),
        ({"regex": "a+"}, common_pb2.Guide(regex="a+")),
        ({"grammar": 'start: "a"', "regex": None}, common_pb2.Guide(grammar='start: "a"')),
        ({"choice": ("a", "b")}, common_pb2.Guide(choice=common_pb2.ChoiceGuide(choices=["a", "b"]))),
        ({"guide": common_pb2.Guide(regex="a")}, common_pb2.Guide(regex="a")),
    ],
)
def test_what_the_answer_must_look_like(
    address: str, servicer: ScriptedGeneration, given: dict[str, object], guide: common_pb2.Guide
) -> None:
    with Client(address) as client:
        list(client.generate("x", **given))
    assert servicer.requests[0].sampling.guide == guide


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"regex": "a", "choice": ["b"]}, ValueError, "regex, choice: an answer can have one guide only"),
        ({"choice": "yes"}, TypeError, "choice must be several texts"),
        ({"json_schema": 7}, TypeError, "json_schema must be JSON, a mapping or a pydantic model, not 7"),
    ],
)
def test_guides_that_are_none(
    address: str, servicer: ScriptedGeneration, given: dict[str, object], error: type[Exception], message: str
) -> None:
    with Client(address) as client, pytest.raises(error, match=message):
        client.generate("x", **given)
    assert servicer.requests == []


def test_progress(address: str) -> None:
    with Client(address) as client:
        first, *rest = client.generate("to be", report_progress=True)
    assert first.progress.prompt_tokens == 2
    assert not any(response.HasField("progress") for response in rest)


def test_pins(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address) as client:
        first = client.pin("one two three", ttl=90, cache_scope="app", model="parrot", timeout=5)
        second = client.pin([1, 2], ttl=timedelta(hours=1))
        assert (first.pin_id, first.pinned_tokens, second.remaining.ToSeconds()) == ("pin0", 3, 3600)
        assert client.pins() == [first, second]
        client.unpin(first.pin_id)
        client.unpin(second)
        assert client.pins() == []
        with pytest.raises(OctavoError, match="no such pin") as caught:
            client.unpin(first)
    assert caught.value.status is grpc.StatusCode.NOT_FOUND
    request = servicer.pin_requests[0]
    assert (request.ttl.ToSeconds(), request.timeout.ToSeconds(), request.model) == (90, 5, "parrot")
    assert request.cache_scope.WhichOneof("scope") == "app"


def test_a_pin_that_is_refused_names_the_field(address: str) -> None:
    with Client(address) as client, pytest.raises(OctavoError) as caught:
        client.pin("refuse", ttl=60)
    assert caught.value.field == "ttl"


def test_metadata_goes_with_each_call(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address, metadata={"octavo-tenant": "acme"}) as client:
        list(client.generate("x"))
        assert servicer.metadata["octavo-tenant"] == "acme"
        servicer.metadata = {}
        client.pins()
        assert servicer.metadata["octavo-tenant"] == "acme"


def test_models_and_tokenize(address: str) -> None:
    with Client(address) as client:
        assert [model.name for model in client.models()] == ["parrot"]
        assert client.tokenize("one two three") == [0, 1, 2]


def test_refusal_names_status_and_field(address: str) -> None:
    with Client(address) as client, pytest.raises(OctavoError) as caught:
        list(client.generate("refuse", temperature=-1.0))
    error = caught.value
    assert error.status is grpc.StatusCode.INVALID_ARGUMENT
    assert error.field == "sampling.temperature"
    assert str(error) == "INVALID_ARGUMENT: sampling.temperature: must not be negative"
    assert error.from_server


def test_full_queue_says_when_to_come_back(address: str) -> None:
    with Client(address, retry=None) as client, pytest.raises(OctavoError) as caught:
        list(client.generate("full"))
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.retry_after == 1.5


def test_unavailable_server_is_not_an_unreachable_one(address: str) -> None:
    with Client(address, retry=None) as client, pytest.raises(OctavoError) as caught:
        list(client.generate("draining"))
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    assert caught.value.from_server


def test_unreachable_address() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with Client(f"127.0.0.1:{held.getsockname()[1]}", retry=None) as client, pytest.raises(OctavoError) as caught:
            client.models()
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    assert not caught.value.from_server


def test_unknown_sampling_parameter_is_refused_before_anything_is_sent(
    address: str, servicer: ScriptedGeneration
) -> None:
    with Client(address) as client, pytest.raises(ValueError, match="temprature"):
        client.generate("hello", temprature=0.5)
    assert servicer.requests == []


def test_closing_the_iterator_ends_the_request(address: str, servicer: ScriptedGeneration) -> None:
    with Client(address) as client:
        answer = client.generate("forever")
        assert next(answer).text == "on"
        answer.close()  # type: ignore[attr-defined]
        assert servicer.client_left.wait(10)


def test_deadline(address: str) -> None:
    # This server does not know of `timeout`: the call's own deadline, a little later, still holds.
    with Client(address) as client, pytest.raises(OctavoError) as caught:
        list(client.generate("forever", timeout=0.05))
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_async_client_streams_several_at_once(address: str) -> None:
    async with AsyncClient(address) as client:

        async def ask(prompt: str) -> str:
            return "".join([response.text async for response in client.generate(prompt)])

        assert await asyncio.gather(ask("a b"), ask("c d e")) == ["a b ", "c d e "]
        assert [model.name for model in await client.models()] == ["parrot"]
        assert await client.tokenize("one two") == [0, 1]


async def test_async_pins(address: str, servicer: ScriptedGeneration) -> None:
    async with AsyncClient(address, metadata={"octavo-app": "mail"}) as client:
        pin = await client.pin([Segment("one two", "shared:docs")], ttl=60)
        assert await client.pins() == [pin]
        assert servicer.metadata["octavo-app"] == "mail"
        await client.unpin(pin)
        with pytest.raises(OctavoError, match="no such pin"):
            await client.unpin(pin.pin_id)
    assert servicer.pin_requests[0].prompt.segmented.segments[0].cache_scope.shared == "docs"


async def test_async_cancellation_gives_a_pin_up(address: str, servicer: ScriptedGeneration) -> None:
    async with AsyncClient(address) as client:
        task = asyncio.create_task(client.pin("forever", ttl=60))
        while not servicer.pin_requests:
            await asyncio.sleep(0.005)
        task.cancel()
        assert await asyncio.to_thread(servicer.client_left.wait, 10)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_async_refusal(address: str) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(OctavoError, match=r"sampling\.temperature: must not be negative"):
            async for _ in client.generate("refuse"):
                pass


async def test_async_cancellation_ends_the_request(address: str, servicer: ScriptedGeneration) -> None:
    async with AsyncClient(address) as client:
        started = asyncio.Event()

        async def ask() -> None:
            async for _ in client.generate("forever"):
                started.set()

        task = asyncio.create_task(ask())
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        assert await asyncio.to_thread(servicer.client_left.wait, 10)
        with pytest.raises(asyncio.CancelledError):
            await task
