"""Step batches and results: from the wire and to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from executor.executor import ExecutorInfo
from executor.step import (
    BlockPlace,
    Candidates,
    NewSequence,
    Penalties,
    SamplingParams,
    Speeds,
    StepBatch,
    StepResult,
    StoredBlock,
    Tier,
    TokenLogprobs,
)
from octavo.v1 import common_pb2, executor_pb2, inference_pb2, memory_pb2
from services.rpc.columns import (
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_int32,
    unpack_int64,
    unpack_int64_tuples,
    unpack_tuples,
)

RECORDS_BYTES = 1 << 20
"""About the size of one message of block records."""


def decode_batch(message: executor_pb2.StepBatch) -> StepBatch:
    """Raises ValueError where a column's length is impossible."""
    return StepBatch(
        epoch=message.epoch,
        step=message.step,
        removed_blocks=_decode_places(message.removed_blocks),
        forget=unpack_int64(message.forget),
        branches=_int64_pairs(message.branches),
        chosen_tokens=_int64_pairs(message.chosen_tokens),
        new_sequences=[_decode_sequence(new) for new in message.new_sequences],
        table_edits=cast(list[tuple[int, int, int]], unpack_int64_tuples(message.table_edits, 3)),
        swaps_out=_int32_pairs(message.swaps_out),
        swaps_in=_int32_pairs(message.swaps_in),
        block_copies=_int32_pairs(message.block_copies),
        row_sequence_ids=unpack_int64(message.row_sequence_ids),
        row_num_tokens=unpack_int32(message.row_num_tokens),
        forks={fork.parent_sequence_id: unpack_int64(fork.child_sequence_ids) for fork in message.forks},
        stored_blocks=[_decode_stored(stored) for stored in message.stored_blocks],
    )


def _decode_places(data: bytes) -> list[BlockPlace]:
    return [(Tier(tier), block) for tier, block in _int32_pairs(data)]


def _decode_stored(message: executor_pb2.StoredBlock) -> StoredBlock:
    return StoredBlock(Tier(message.tier), message.block_id, message.SerializeToString())


def encode_records(records: Sequence[bytes]) -> Iterator[executor_pb2.DescribeBlocksResponse]:
    """Messages of a moderate size, with the records of all blocks in their order."""
    message, size = executor_pb2.DescribeBlocksResponse(), 0
    for record in records:
        if size and size + len(record) > RECORDS_BYTES:
            yield message
            message, size = executor_pb2.DescribeBlocksResponse(), 0
        message.blocks.add().MergeFromString(record)
        size += len(record)
    if size:
        yield message


def _decode_sequence(message: executor_pb2.NewSequence) -> NewSequence:
    return NewSequence(
        sequence_id=message.sequence_id,
        token_ids=unpack_int32(message.token_ids),
        prompt_length=message.prompt_length,
        num_computed=message.num_computed,
        block_table=unpack_int32(message.block_table),
        sampling=_decode_sampling(message.sampling),
        sample_index=message.sample_index,
        num_candidates=message.num_candidates,
        ranked=message.ranked,
    )


def _decode_sampling(message: common_pb2.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        penalties=_decode_penalties(message),
        guide=message.guide.grammar if message.HasField("guide") else None,
    )


def _decode_penalties(message: common_pb2.SamplingParams) -> Penalties | None:
    penalties = Penalties(
        presence=message.presence_penalty,
        frequency=message.frequency_penalty,
        repetition=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        logit_bias=dict(message.logit_bias),
    )
    return None if penalties == Penalties() else penalties


def encode_result(result: StepResult, duration_us: int) -> executor_pb2.ExecuteResponse:
    """Most steps have nothing but tokens: a field that is not touched costs nothing."""
    response = executor_pb2.ExecuteResponse()
    message = response.result
    message.epoch = result.epoch
    message.step = result.step
    message.sequence_ids = pack_int64(result.sequence_ids)
    message.token_ids = pack_int32(result.token_ids)
    message.duration_us = duration_us
    if result.logprobs:
        message.logprobs.extend([_encode_logprobs(logprobs) for logprobs in result.logprobs])
    if result.scores:
        message.scores = pack_float32(result.scores)
    if result.candidates:
        message.candidates.extend([_encode_candidates(candidates) for candidates in result.candidates])
    if result.speeds is not None:
        message.speeds.CopyFrom(_encode_speeds(result.speeds))
    for sequence_id, reason in result.failures:
        message.failures.add(sequence_id=sequence_id, reason=reason)
    return response


def _encode_logprobs(logprobs: TokenLogprobs | None) -> common_pb2.TokenLogprobs:
    if logprobs is None:
        return common_pb2.TokenLogprobs()
    return common_pb2.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def _encode_candidates(candidates: Candidates) -> executor_pb2.Candidates:
    return executor_pb2.Candidates(
        sequence_id=candidates.sequence_id,
        token_ids=pack_int32(candidates.token_ids),
        logprobs=pack_float32(candidates.logprobs),
    )


def _encode_speeds(speeds: Speeds) -> memory_pb2.Speeds:
    return memory_pb2.Speeds(
        prefill_tokens_per_s=speeds.prefill_tokens_per_s,
        swap_out_blocks_per_s=speeds.swap_out_blocks_per_s,
        swap_in_blocks_per_s=speeds.swap_in_blocks_per_s,
        copy_blocks_per_s=speeds.copy_blocks_per_s,
    )


def encode_description(info: ExecutorInfo, epoch: int, speeds: Speeds) -> executor_pb2.DescribeResponse:
    return executor_pb2.DescribeResponse(
        model=inference_pb2.Model(
            name=info.model_name,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
        ),
        bytes_per_block=info.bytes_per_block,
        incarnation=info.incarnation,
        epoch=epoch,
        device=info.device,
        dtype=info.dtype,
        attention_backend=info.attention_backend,
        num_host_blocks=info.num_host_blocks,
        max_batched_tokens=info.max_batched_tokens,
        max_sequences=info.max_sequences,
        speeds=_encode_speeds(speeds),
        tensor_parallel_size=info.tensor_parallel_size,
    )


def _int32_pairs(data: bytes) -> list[tuple[int, int]]:
    return cast(list[tuple[int, int]], unpack_tuples(data, 2))


def _int64_pairs(data: bytes) -> list[tuple[int, int]]:
    return cast(list[tuple[int, int]], unpack_int64_tuples(data, 2))
