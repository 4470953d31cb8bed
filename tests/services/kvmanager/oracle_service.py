"""The oracle executor behind a real ExecutorService: what it answers is known beforehand, and it sees wrong blocks."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator

import grpc

from kvmanager.kv_events import Tier
from kvmanager.step import NewSequence, StepBatch, StepResult
from octavo.v1 import common_pb2, executor_pb2, executor_pb2_grpc, inference_pb2, memory_pb2
from services.kvmanager.codec import decode_stored_blocks, encode_batch
from services.rpc.columns import (
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_int32,
    unpack_int64,
    unpack_int64_tuples,
    unpack_tuples,
)
from tests.oracle import VOCAB_SIZE, Oracle
from tests.ports import free_port

BLOCK_SIZE = 4
MODEL = inference_pb2.Model(
    name="oracle", max_model_len=400, vocab_size=VOCAB_SIZE, block_size=BLOCK_SIZE, num_blocks=100
)


_TIERS = {common_pb2.TIER_DEVICE: Tier.DEVICE, common_pb2.TIER_HOST: Tier.HOST}


class OracleService(executor_pb2_grpc.ExecutorServiceServicer):
    """One executor on a port of its own. While it is held, steps wait, and whoever asks what its blocks hold.

    Attributes:
        batches: the messages that it was sent.
        problems: what the oracle had to say against them.
        num_exhausted: so many steps to come fail for want of memory.
    """

    def __init__(self, num_host_blocks: int = 0, **model: object) -> None:
        self.model = inference_pb2.Model()
        self.model.CopyFrom(MODEL)
        for field, value in model.items():
            setattr(self.model, field, value)
        self.num_host_blocks = num_host_blocks
        self.address = f"127.0.0.1:{free_port()}"
        self.speeds = memory_pb2.Speeds()
        self.batches: list[executor_pb2.StepBatch] = []
        self.problems: list[str] = []
        self.epoch = 0
        self.num_exhausted = 0
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Starts as a new process does: with empty memory."""
        self.incarnation = secrets.token_hex(8)
        self._oracle = Oracle(self.model.num_blocks, self.model.block_size, random.Random(1), self.num_host_blocks)
        self._server = grpc.aio.server()
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def kill(self) -> None:
        """Breaks all connections at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def hold(self) -> None:
        self._may_run.clear()

    def go_on(self) -> None:
        self._may_run.set()

    async def Describe(self, request: executor_pb2.DescribeRequest, context: object) -> executor_pb2.DescribeResponse:
        return executor_pb2.DescribeResponse(
            model=self.model,
            bytes_per_block=1000,
            incarnation=self.incarnation,
            epoch=self.epoch,
            num_host_blocks=self.num_host_blocks,
            speeds=self.speeds,
        )

    async def DescribeBlocks(
        self, request: executor_pb2.DescribeBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[executor_pb2.DescribeBlocksResponse]:
        if request.epoch <= self.epoch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"epoch {request.epoch} is not above {self.epoch}")
        await self._may_run.wait()
        self.epoch = request.epoch
        stored = encode_batch(StepBatch(0, stored_blocks=self._oracle.describe_blocks()), 0, ()).batch.stored_blocks
        yield executor_pb2.DescribeBlocksResponse(blocks=stored)

    async def Execute(
        self, requests: AsyncIterator[executor_pb2.ExecuteRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[executor_pb2.ExecuteResponse]:
        async for request in requests:
            batch = request.batch
            await self._may_run.wait()
            if batch.epoch > self.epoch:
                self.epoch = batch.epoch
                self._oracle.lose()
            if batch.epoch < self.epoch:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "an older epoch")
            self.batches.append(batch)
            if self.num_exhausted:
                self.num_exhausted -= 1
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no memory to compute the step")
            try:
                self._oracle.send(_decode(batch))
                result = self._oracle.run()
            except AssertionError as problem:
                self.problems.append(str(problem))
                raise
            assert result is not None
            yield executor_pb2.ExecuteResponse(result=_encode(result, batch.epoch))


def _decode(message: executor_pb2.StepBatch) -> StepBatch:
    return StepBatch(
        message.step,
        removed_blocks=[(_TIERS[tier], block) for tier, block in unpack_tuples(message.removed_blocks, 2)],
        forget=unpack_int64(message.forget),
        branches=unpack_int64_tuples(message.branches, 2),
        chosen_tokens=unpack_int64_tuples(message.chosen_tokens, 2),
        new_sequences=[
            NewSequence(
                new.sequence_id,
                unpack_int32(new.token_ids),
                new.prompt_length,
                new.num_computed,
                unpack_int32(new.block_table),
                new.sampling.seed,
                new.sample_index,
                new.num_candidates,
                new.ranked,
            )
            for new in message.new_sequences
        ],
        table_edits=unpack_int64_tuples(message.table_edits, 3),
        swaps_out=unpack_tuples(message.swaps_out, 2),
        swaps_in=unpack_tuples(message.swaps_in, 2),
        block_copies=unpack_tuples(message.block_copies, 2),
        row_sequence_ids=unpack_int64(message.row_sequence_ids),
        row_num_tokens=unpack_int32(message.row_num_tokens),
        forks={fork.parent_sequence_id: unpack_int64(fork.child_sequence_ids) for fork in message.forks},
        stored_blocks=decode_stored_blocks(message.stored_blocks),
    )


def _encode(result: StepResult, epoch: int) -> executor_pb2.StepResult:
    return executor_pb2.StepResult(
        epoch=epoch,
        step=result.step,
        sequence_ids=pack_int64(result.sequence_ids),
        token_ids=pack_int32(result.token_ids),
        scores=pack_float32(result.scores),
        candidates=[
            executor_pb2.Candidates(
                sequence_id=sequence_id, token_ids=pack_int32(token_ids), logprobs=pack_float32(logprobs)
            )
            for sequence_id, (token_ids, logprobs) in result.candidates.items()
        ],
    )
