"""The Python client against a real server in this process."""

import asyncio
import socket
from collections.abc import Iterator

import grpc
import pytest

from octavo.client import AsyncClient, Client, OctavoError
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
    with Client(address) as client, pytest.raises(OctavoError) as caught:
        list(client.generate("full"))
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.retry_after == 1.5


def test_unavailable_server_is_not_an_unreachable_one(address: str) -> None:
    with Client(address) as client, pytest.raises(OctavoError) as caught:
        list(client.generate("draining"))
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    assert caught.value.from_server


def test_unreachable_address() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with Client(f"127.0.0.1:{held.getsockname()[1]}") as client, pytest.raises(OctavoError) as caught:
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
