"""The executor's service over a real connection."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import grpc
import pytest

from executor.executor import Executor
from octavo.v1 import common_pb2, executor_pb2, executor_pb2_grpc
from services.executor.metrics import ExecutorMetrics
from services.executor.server import ExecutorServicer
from services.rpc.columns import pack_int32, pack_int64, unpack_int32
from services.telemetry.tracing import make_tracing
from tests.scarce_memory import scarce


@pytest.fixture
def executor(llama, load) -> Executor:
    return load(llama[0], host_memory="60KiB")


@pytest.fixture
async def stub(executor) -> AsyncIterator[executor_pb2_grpc.ExecutorServiceStub]:
    servicer = ExecutorServicer(
        executor, make_tracing("octavo-executor", None), lambda context: None, ExecutorMetrics()
    )
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
        ({"removed_blocks": pack_int32([3, 1])}, "3 is not a valid Tier"),
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


# Who leads


def _full_block(block_id: int, identity: bytes, **fields) -> executor_pb2.StoredBlock:
    return executor_pb2.StoredBlock(
        block_id=block_id, tier=common_pb2.TIER_DEVICE, identity=identity, token_ids=bytes(64), owner="acme", **fields
    )


async def _blocks(stub, epoch):
    request = executor_pb2.DescribeBlocksRequest(epoch=epoch)
    messages = [message async for message in stub.DescribeBlocks(request)]
    return [block for message in messages for block in message.blocks]


async def test_what_blocks_hold_is_told_as_it_was_stored(stub):
    first = [_full_block(4, b"a"), _full_block(7, b"b", parent_identity=b"a", salt=b"s", narrowness=2)]
    host = executor_pb2.StoredBlock(block_id=0, tier=common_pb2.TIER_HOST, identity=b"a")
    await _results(
        stub,
        executor_pb2.StepBatch(epoch=1, step=1, stored_blocks=first),
        executor_pb2.StepBatch(epoch=1, step=2, stored_blocks=[host], removed_blocks=pack_int32([1, 4])),
    )
    assert await _blocks(stub, 2) == [first[1], host]
    assert (await stub.Describe(executor_pb2.DescribeRequest())).epoch == 2
    await _results(stub, executor_pb2.StepBatch(epoch=2, step=1))
    assert await _blocks(stub, 3) == [first[1], host]


async def test_many_blocks_are_told_in_messages_of_a_moderate_size(stub):
    block = _full_block(4, b"a" * 32, salt=bytes(300_000))
    blocks = [executor_pb2.StoredBlock(block_id=i) for i in range(10)]
    for each in blocks:
        number = each.block_id
        each.CopyFrom(block)
        each.block_id = number
    await _results(stub, executor_pb2.StepBatch(epoch=1, step=1, stored_blocks=blocks))
    messages = [m async for m in stub.DescribeBlocks(executor_pb2.DescribeBlocksRequest(epoch=2))]
    assert [block for message in messages for block in message.blocks] == blocks
    assert [len(message.blocks) for message in messages] == [3, 3, 3, 1]


async def test_an_old_leader_hears_at_once_that_another_leads(stub):
    """Though it sends nothing; also one that has never sent a step."""
    silent = stub.Execute()
    leading = stub.Execute()
    await leading.write(executor_pb2.ExecuteRequest(batch=executor_pb2.StepBatch(epoch=1, step=1)))
    assert (await leading.read()).result.step == 1
    assert await _blocks(stub, 5) == []
    for call, whose in ((leading, "epoch 1"), (silent, "the epoch of this stream")):
        with pytest.raises(grpc.aio.AioRpcError, match=f"{whose} is older than 5") as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.aio.AioRpcError, match="epoch 1 is older than 5"):
        await _results(stub, executor_pb2.StepBatch(epoch=1, step=2))
    for epoch in (4, 5):
        with pytest.raises(grpc.aio.AioRpcError, match=f"epoch {epoch} is not above 5") as error:
            await _blocks(stub, epoch)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert len(await _results(stub, executor_pb2.StepBatch(epoch=5, step=1))) == 1


async def test_a_higher_epoch_of_a_step_ends_older_streams_too(stub):
    old, new = stub.Execute(), stub.Execute()
    for call, epoch in ((old, 1), (new, 2)):
        await call.write(executor_pb2.ExecuteRequest(batch=executor_pb2.StepBatch(epoch=epoch, step=1)))
        assert (await call.read()).result.epoch == epoch
    with pytest.raises(grpc.aio.AioRpcError, match="epoch 1 is older than 2"):
        await old.read()
    await new.write(executor_pb2.ExecuteRequest(batch=executor_pb2.StepBatch(epoch=2, step=2)))
    assert (await new.read()).result.step == 2
