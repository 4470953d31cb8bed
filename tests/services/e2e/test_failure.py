"""What happens to running streams when one of the three processes is killed, and how the others get over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from octavo.v1 import common_pb2, executor_pb2, executor_pb2_grpc
from services.rpc.columns import pack_int32, pack_int64, pack_int64_tuples, unpack_int32
from tests.services.e2e.calls import Call, Caller
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import CHANNEL_OPTIONS, NOT_SERVING, PATIENCE, SERVING, Server, eventually
from tests.services.e2e.stack import describe
from tests.services.e2e.tiny_model import Reference

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}


def mixed_requests() -> list[dict[str, Any]]:
    """Two greedy requests, a seeded one, and one of three seeded sequences with log probabilities."""
    return [
        {"prompt": "greedy one", **LONG},
        {"prompt": "greedy two " * 20, "max_tokens": 200, "ignore_eos": True},
        {"prompt": "seeded", "temperature": 0.8, "seed": 21, **LONG},
        {"prompt": "three seeded", "temperature": 1, "seed": 22, "n": 3, "logprobs": 1, **LONG},
    ]


def start_in_the_middle(caller: Caller, requests: list[dict[str, Any]], tokens: int = 5) -> list[Call]:
    calls = [caller.start(**request) for request in requests]
    for call in calls:
        call.wait_for_tokens(tokens)
    return calls


def test_the_executor_is_killed(make_stack: MakeStack, caller: Caller) -> None:
    """Every stream goes on after its return: no token lost, repeated or changed, no error."""
    undisturbed = [answer.all_token_ids() for answer in caller.generate_all(mixed_requests())]
    stack = make_stack()
    calls = start_in_the_middle(stack.caller, mixed_requests())
    stack.executor.kill()
    stack.gateway.wait_until_not_serving()
    assert not any(call.over for call in calls)
    waiting = stack.caller.start("meanwhile", max_tokens=10, ignore_eos=True)
    stack.executor.start()
    assert [call.result().all_token_ids() for call in calls] == undisturbed
    assert len(calls[3].result().sequences[2].logprobs) == LONG["max_tokens"]
    assert len(waiting.result().token_ids) == 10
    stack.gateway.wait_until_serving()
    stack.wait_until_idle()


def test_the_executor_is_killed_in_the_middle_of_a_prompt(make_stack: MakeStack, reference: Reference) -> None:
    """Also right at the start, when no token has come yet, and again before it has caught up."""
    stack = make_stack(kvmanager={"max_batched_tokens": 16, "max_sequences": 16})
    prompts = [[3 + i] * 300 for i in range(3)]
    stack.executor.pause()
    calls = [stack.caller.start(prompt, max_tokens=20, ignore_eos=True, n=2) for prompt in prompts]
    stack.wait_for_requests(running=1, waiting=2)  # the first prompt takes the whole budget of the steps under way
    for _ in range(2):
        stack.executor.kill()
        stack.kvmanager.wait_until_not_serving()
        stack.executor.start()
        stack.kvmanager.wait_until_serving()
    for prompt, call in zip(prompts, calls, strict=True):
        assert call.result().all_token_ids() == [reference.greedy(prompt, 20)] * 2
    stack.wait_until_idle()


def test_the_kv_manager_is_killed(make_stack: MakeStack, caller: Caller) -> None:
    """Every stream goes on after its return, twice: no token lost, repeated or changed, no error. Others wait."""
    undisturbed = [answer.all_token_ids() for answer in caller.generate_all(mixed_requests())]
    stack = make_stack()
    epoch = stack.epoch()
    calls = start_in_the_middle(stack.caller, mixed_requests())
    for tokens in (50, 200):
        stack.kvmanager.kill()
        waiting = stack.caller.start("meanwhile", max_tokens=10, ignore_eos=True)
        stack.kvmanager.start()
        assert len(waiting.result().token_ids) == 10
        assert stack.gateway.health() == SERVING
        assert stack.epoch() > epoch
        epoch = stack.epoch()
        calls[0].wait_for_tokens(tokens)
    assert [call.result().all_token_ids() for call in calls] == undisturbed
    assert len(calls[3].result().sequences[2].logprobs) == LONG["max_tokens"]
    stack.wait_until_idle()


def test_the_kv_manager_stays_away(make_stack: MakeStack, reference: Reference) -> None:
    """When patience is over, streams end with UNAVAILABLE. After its return everything works."""
    stack = make_stack(gateway={"kvmanager_patience": 0.5})
    epoch = stack.epoch()
    calls = start_in_the_middle(stack.caller, mixed_requests())
    stack.kvmanager.kill()
    for call in calls:
        error = call.error()
        assert error.status == grpc.StatusCode.UNAVAILABLE
        assert error.reason == "BACKEND_UNAVAILABLE"
        assert error.retry_after
    eventually(lambda: stack.gateway.health() == NOT_SERVING)
    assert stack.caller.start("x").error().status == grpc.StatusCode.UNAVAILABLE
    for _ in range(2):
        stack.kvmanager.kill()
        stack.gateway.wait_until_not_serving()
        stack.kvmanager.start()
        stack.gateway.wait_until_serving()
        answers = stack.caller.generate_all(
            [{"prompt": f"back {i}", "max_tokens": 50, "ignore_eos": True} for i in range(3)]
        )
        for i, answer in enumerate(answers):
            assert answer.token_ids == reference.greedy(reference.encode(f"back {i}"), 50)
        assert stack.epoch() > epoch
        epoch = stack.epoch()
    stack.wait_until_idle()


def test_a_gateway_is_killed(make_stack: MakeStack, reference: Reference) -> None:
    """Its requests' blocks come back; another gateway on the same KV manager goes on."""
    stack = make_stack()
    second = stack.another_gateway()
    second.start()
    second.wait_until_serving()
    survivor = Caller(second.address)
    try:
        requests = [{"prompt": f"goes on {i}", **LONG} for i in range(2)]
        going_on = start_in_the_middle(survivor, requests, tokens=1)
        doomed = start_in_the_middle(stack.caller, mixed_requests(), tokens=1)
        with stack.executor.held():
            stack.wait_for_requests(running=6)
            stack.gateway.kill()
            for call in doomed:
                assert call.error().status == grpc.StatusCode.UNAVAILABLE
            stack.wait_for_requests(running=2)
        for i, call in enumerate(going_on):
            assert call.result().token_ids == reference.greedy(reference.encode(f"goes on {i}"), 400)
        stack.wait_until_idle(5)
        stack.gateway.start()
        stack.gateway.wait_until_serving()
        assert stack.caller.generate("back", max_tokens=1).complete
    finally:
        survivor.close()
        second.kill()


def test_two_gateways_share_the_prefix_cache_and_a_request_id(make_stack: MakeStack, reference: Reference) -> None:
    """Handles of different gateways never meet, though both count from one."""
    stack = make_stack()
    second = stack.another_gateway()
    second.start()
    second.wait_until_serving()
    other = Caller(second.address)
    try:
        prompt = "a prefix that both send " * 5
        first = stack.caller.generate(prompt, max_tokens=3, ignore_eos=True, request_id="same")
        again = other.generate(prompt, max_tokens=3, ignore_eos=True, request_id="same")
        assert first.token_ids == again.token_ids
        assert again.usage is not None
        assert again.usage.cached_tokens > 0
        calls = [
            each.start(f"crossing {i} {number}", max_tokens=60, ignore_eos=True)
            for i in range(4)
            for number, each in enumerate((stack.caller, other))
        ]
        for index, call in enumerate(calls):
            expected = reference.greedy(reference.encode(f"crossing {index // 2} {index % 2}"), 60)
            assert call.result().token_ids == expected
    finally:
        other.close()
        second.kill()
    stack.wait_until_idle()


# The executor's fence against an older KV manager


class Steps:
    """A raw stream of step batches."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: SimpleQueue[executor_pb2.ExecuteRequest | None] = SimpleQueue()
        self._responses = executor_pb2_grpc.ExecutorServiceStub(channel).Execute(
            iter(self._requests.get, None), timeout=PATIENCE
        )

    def run(self, epoch: int, step: int, **fields: Any) -> executor_pb2.StepResult:
        batch = executor_pb2.StepBatch(epoch=epoch, step=step, **fields)
        self._requests.put(executor_pb2.ExecuteRequest(batch=batch))
        result: executor_pb2.StepResult = next(self._responses).result
        assert (result.epoch, result.step) == (epoch, step)
        return result

    def refusal(self, epoch: int, step: int, **fields: Any) -> str:
        """The stream ends with FAILED_PRECONDITION, and this message."""
        with pytest.raises(grpc.RpcError) as caught:
            self.run(epoch, step, **fields)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        return caught.value.details() or ""

    def end(self) -> None:
        self._requests.put(None)


@pytest.fixture
def executor(spare_executor: Server) -> Server:
    """An executor without a KV manager."""
    if not spare_executor.running:
        spare_executor.start()
    spare_executor.wait_until_serving()
    return spare_executor


@contextmanager
def steps_of(executor: Server) -> Iterator[Steps]:
    with grpc.insecure_channel(executor.address, options=CHANNEL_OPTIONS) as channel:
        steps = Steps(channel)
        yield steps
        steps.end()


def test_the_executor_refuses_an_older_epoch(executor: Server) -> None:
    epoch = describe(executor.address).epoch + 5
    with steps_of(executor) as old, steps_of(executor) as new:
        old.run(epoch, 1)
        old.run(epoch, 2)
        new.run(epoch + 1, 1)
        assert describe(executor.address).epoch == epoch + 1
        assert str(epoch) in old.refusal(epoch, 3)
        new.run(epoch + 1, 2)


@pytest.mark.parametrize("step", [0, 2, 4, 2**40])
def test_the_executor_refuses_a_gap_in_steps(executor: Server, step: int) -> None:
    epoch = describe(executor.address).epoch + 1
    with steps_of(executor) as steps:
        steps.run(epoch, 1)
        steps.run(epoch, 2)
        assert f"step {step}" in steps.refusal(epoch, step)
    with steps_of(executor) as steps:  # the refusal changed nothing
        steps.run(epoch, 3)
        assert "step 3" in steps.refusal(epoch + 1, 3)
    assert describe(executor.address).epoch == epoch


def test_what_a_step_may_not_name(executor: Server) -> None:
    description = describe(executor.address)
    epoch, num_blocks = description.epoch + 1, description.model.num_blocks
    new = executor_pb2.NewSequence(sequence_id=1, token_ids=pack_int32([5, 6, 7]), prompt_length=3)
    rows = {"row_sequence_ids": pack_int64([1]), "row_num_tokens": pack_int32([3])}
    bad: list[tuple[str, dict[str, Any]]] = [
        ("sequence", {"row_sequence_ids": pack_int64([99]), "row_num_tokens": pack_int32([1])}),
        ("table", {"new_sequences": [new], **rows}),
        ("block", {"new_sequences": [new], "table_edits": pack_int64_tuples([(1, 0, num_blocks)]), **rows}),
        ("forget", {"forget": pack_int64([12345])}),
        ("", {"forget": b"\x01\x02\x03"}),
        ("", {"table_edits": pack_int64([1, 2])}),
    ]
    for word, fields in bad:
        with steps_of(executor) as steps:
            assert word in steps.refusal(epoch, 1, **fields)
    assert describe(executor.address).epoch == description.epoch


def test_a_raw_step_gives_the_right_token(executor: Server, reference: Reference) -> None:
    """And two streams of one epoch may take turns: order is all that counts."""
    epoch = describe(executor.address).epoch + 1
    prompt = [5, 6, 7]
    new = executor_pb2.NewSequence(
        sequence_id=4,
        token_ids=pack_int32(prompt),
        prompt_length=3,
        sampling=common_pb2.SamplingParams(temperature=0),
    )
    rows = {"row_sequence_ids": pack_int64([4])}
    with steps_of(executor) as one, steps_of(executor) as two:
        first = one.run(
            epoch,
            1,
            new_sequences=[new],
            table_edits=pack_int64_tuples([(4, 0, 9)]),
            row_num_tokens=pack_int32([3]),
            **rows,
        )
        second = two.run(epoch, 2, row_num_tokens=pack_int32([1]), **rows)
    tokens = unpack_int32(first.token_ids) + unpack_int32(second.token_ids)
    assert tokens == reference.greedy(prompt, 2)


def test_a_kv_manager_that_was_fenced_off_comes_back_with_a_higher_epoch(
    make_stack: MakeStack, reference: Reference
) -> None:
    """Somebody else took the executor: its requests start again from the tokens they have."""
    stack = make_stack()
    (call,) = start_in_the_middle(stack.caller, [{"prompt": "fenced", **LONG}])
    epoch = stack.epoch()
    with steps_of(stack.executor) as intruder:
        intruder.run(epoch + 10, 1)
    assert call.result().token_ids == reference.greedy(reference.encode("fenced"), 400)
    assert stack.epoch() > epoch + 10
    stack.wait_until_idle()
