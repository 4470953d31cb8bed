"""The executor's service over a real connection."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import grpc
import pytest

from executor.executor import Executor
from octavo.v1 import common_pb2, executor_pb2, executor_pb2_grpc
from services.executor.server import ExecutorServicer
from services.rpc.columns import pack_int32, pack_int64, unpack_int32
from services.telemetry.tracing import make_tracing
from tests.scarce_memory import scarce


@pytest.fixture
def executor(llama, load) -> Executor:
    return load(llama[0], host_memory="60KiB")


@pytest.fixture
async def stub(executor) -> AsyncIterator[executor_pb2_grpc.ExecutorServiceStub]:
    servicer = ExecutorServicer(executor, make_tracing("octavo-executor", None), lambda context: None)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([servicer.handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield executor_pb2_grpc.ExecutorServiceStub(channel)
    await server.stop(None)
    servicer.close()


def _first(**fields):
    new = executor_pb2.NewSequence(
        sequence_id=1,
        token_ids=pack_int32([5, 6, 7]),
        prompt_length=3,
        block_table=pack_int32([4]),
        sampling=common_pb2.SamplingParams(repetition_penalty=1.5),
        num_candidates=3,
    )
    return executor_pb2.StepBatch(
        epoch=1, step=1, new_sequences=[new], row_sequence_ids=pack_int64([1]), row_num_tokens=pack_int32([3]), **fields
    )


async def _results(stub, *batches):
    async def requests():
        for batch in batches:
            yield executor_pb2.ExecuteRequest(batch=batch)

    return [response.result async for response in stub.Execute(requests())]


async def test_describe_tells_the_host_pool_and_the_speeds(stub):
    described = await stub.Describe(executor_pb2.DescribeRequest())
    assert described.num_host_blocks == 10
    assert described.bytes_per_block == 6144
    speeds = described.speeds
    assert min(speeds.prefill_tokens_per_s, speeds.swap_out_blocks_per_s, speeds.swap_in_blocks_per_s) > 0
    assert speeds.copy_blocks_per_s > 0


async def test_two_steps_of_a_beam_and_its_way_to_the_host_and_back(stub):
    second = executor_pb2.StepBatch(
        epoch=1,
        step=2,
        branches=pack_int64([1, 2]),
        chosen_tokens=pack_int64([1, 50, 2, 60]),
        table_edits=pack_int64([2, 0, 9]),
        swaps_out=pack_int32([4, 0]),
        swaps_in=pack_int32([0, 9]),
        row_sequence_ids=pack_int64([1, 2]),
        row_num_tokens=pack_int32([1, 1]),
    )
    first, then = await _results(stub, _first(), second)
    assert [candidates.sequence_id for candidates in first.candidates] == [1]
    assert [candidates.sequence_id for candidates in then.candidates] == [1, 2]
    for candidates in (*first.candidates, *then.candidates):
        logprobs = struct.unpack("<3f", candidates.logprobs)
        assert len(set(unpack_int32(candidates.token_ids))) == 3
        assert sorted(logprobs, reverse=True) == list(logprobs)
    assert then.token_ids == then.scores == b""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"swaps_out": pack_int32([0, 10])}, "swaps_out: destination block 10 of 10"),
        ({"chosen_tokens": pack_int64([9, 1])}, "chosen_tokens: unknown sequence 9"),
        ({"table_edits": pack_int64([1, 1])}, "2 numbers do not make tuples of 3"),
    ],
)
async def test_a_batch_that_makes_no_sense_ends_the_stream(stub, fields, message):
    with pytest.raises(grpc.aio.AioRpcError, match=message) as error:
        await _results(stub, _first(**fields))
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    # Nothing of it was applied, and the same step is taken when it makes sense.
    assert len(await _results(stub, _first())) == 1


async def test_a_step_without_memory_ends_the_stream_and_says_what_to_lower(executor, stub):
    message = "no memory to compute step 1, 3 tokens in 1 rows: lower max_batched_tokens"
    with scarce(executor, 0, 1), pytest.raises(grpc.aio.AioRpcError, match=message) as error:
        await _results(stub, _first())
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    again = _first()
    with pytest.raises(grpc.aio.AioRpcError, match="a higher epoch must start"):
        await _results(stub, again)
    again.epoch = 2
    assert len(await _results(stub, again)) == 1
