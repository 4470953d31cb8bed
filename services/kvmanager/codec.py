"""Requests from gateways, steps for the executor, and what comes back: from the wire and to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from google.rpc import code_pb2

from kvmanager.capacity import Capacity
from kvmanager.counters import Counters
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, QueueFull
from kvmanager.manager import MemoryState
from kvmanager.request import FinishReason, RequestSpec
from kvmanager.step import NewSequence, RequestEnd, SequenceUpdate, StepBatch, StepResult
from octavo.v1 import common_pb2, executor_pb2, kvmanager_pb2
from services.rpc.columns import pack_int32, pack_int64, pack_tuples, unpack_int32, unpack_int64

RETRY_AFTER_US = 1_000_000
"""What a refused caller is told to wait: about the time in which a full queue moves on."""

_FINISH_REASONS = {
    None: common_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}


def decode_submission(message: kvmanager_pb2.Submission, session: int, now: float) -> RequestSpec:
    """Raises ValueError where the prompt column's length is impossible."""
    return RequestSpec(
        handle=(session, message.handle),
        prompt_token_ids=unpack_int32(message.prompt_token_ids),
        salt=message.salt,
        n=message.n,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        sampling=message.sampling,
        deadline=now + message.timeout_us / 1e6 if message.timeout_us else None,
    )


def decode_capacity(message: executor_pb2.DescribeResponse) -> Capacity:
    model = message.model
    return Capacity(model.num_blocks, model.block_size, model.max_model_len)


def encode_batch(
    batch: StepBatch, epoch: int, traces: Sequence[common_pb2.TraceContext]
) -> executor_pb2.ExecuteRequest:
    forks = [
        executor_pb2.Fork(parent_sequence_id=parent, child_sequence_ids=pack_int64(children))
        for parent, children in batch.forks.items()
    ]
    message = executor_pb2.StepBatch(
        epoch=epoch,
        step=batch.step,
        forget=pack_int64(batch.forget),
        new_sequences=[_encode_sequence(new) for new in batch.new_sequences],
        table_edits=pack_tuples(batch.table_edits),
        block_copies=pack_tuples(batch.block_copies),
        row_sequence_ids=pack_int64(batch.row_sequence_ids),
        row_num_tokens=pack_int32(batch.row_num_tokens),
        forks=forks,
        traces=traces,
    )
    return executor_pb2.ExecuteRequest(batch=message)


def _encode_sequence(new: NewSequence) -> executor_pb2.NewSequence:
    assert isinstance(new.sampling, common_pb2.SamplingParams)
    return executor_pb2.NewSequence(
        sequence_id=new.sequence_id,
        token_ids=pack_int32(new.token_ids),
        prompt_length=new.prompt_length,
        num_computed=new.num_computed,
        block_table=pack_int32(new.block_table),
        sampling=new.sampling,
        sample_index=new.sample_index,
    )


def decode_result(message: executor_pb2.StepResult) -> StepResult:
    """Raises ValueError where a column's length is impossible."""
    return StepResult(
        step=message.step,
        sequence_ids=unpack_int64(message.sequence_ids),
        token_ids=unpack_int32(message.token_ids),
        logprobs=list(message.logprobs),
    )


def encode_update(update: SequenceUpdate, handle: int) -> kvmanager_pb2.SequenceUpdate:
    return kvmanager_pb2.SequenceUpdate(
        handle=handle,
        sequence_index=update.sample_index,
        position=update.position,
        token_ids=update.token_ids,
        logprobs=cast(list[common_pb2.TokenLogprobs], update.logprobs),
        finish_reason=_FINISH_REASONS[update.finish_reason],
    )


def encode_end(end: RequestEnd, handle: int) -> kvmanager_pb2.RequestEnd:
    if end.usage is None:
        assert end.error is not None
        return kvmanager_pb2.RequestEnd(handle=handle, error=encode_error(end.error))
    usage = common_pb2.Usage(
        prompt_tokens=end.usage.prompt_tokens,
        completion_tokens=end.usage.completion_tokens,
        cached_tokens=end.usage.cached_tokens,
    )
    return kvmanager_pb2.RequestEnd(handle=handle, usage=usage)


def encode_error(error: Exception) -> kvmanager_pb2.RequestError:
    """The status of each kind of refusal."""
    message = str(error)
    if isinstance(error, InvalidRequest):
        return kvmanager_pb2.RequestError(
            code=code_pb2.INVALID_ARGUMENT, message=message, field=error.field, reason="INVALID_REQUEST"
        )
    if isinstance(error, QueueFull):
        return kvmanager_pb2.RequestError(
            code=code_pb2.RESOURCE_EXHAUSTED, message=message, reason="QUEUE_FULL", retry_after_us=RETRY_AFTER_US
        )
    if isinstance(error, DeadlineExceeded):
        return kvmanager_pb2.RequestError(
            code=code_pb2.DEADLINE_EXCEEDED, message=message, field="timeout", reason="DEADLINE_EXCEEDED"
        )
    reason = "EXECUTOR_FAILED" if isinstance(error, ExecutorFailed) else "INTERNAL"
    return kvmanager_pb2.RequestError(code=code_pb2.INTERNAL, message=message, reason=reason)


def encode_unavailable(message: str) -> kvmanager_pb2.RequestError:
    return kvmanager_pb2.RequestError(
        code=code_pb2.UNAVAILABLE, message=message, reason="UNAVAILABLE", retry_after_us=RETRY_AFTER_US
    )


def encode_memory_map(
    state: MemoryState, counters: Counters, description: executor_pb2.DescribeResponse, blocks: list[tuple[int, bool]]
) -> kvmanager_pb2.GetMemoryMapResponse:
    return kvmanager_pb2.GetMemoryMapResponse(
        block_size=description.model.block_size,
        num_blocks=state.num_blocks,
        free_blocks=state.free_blocks,
        cached_blocks=state.cached_blocks,
        referenced_blocks=state.referenced_blocks,
        bytes_per_block=description.bytes_per_block,
        running_requests=state.running_requests,
        waiting_requests=state.waiting_requests,
        counters=kvmanager_pb2.MemoryCounters(
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=counters.preemptions,
            copied_blocks=counters.copied_blocks,
            evicted_blocks=state.evicted_blocks,
            peak_referenced_blocks=counters.peak_referenced_blocks,
            slot_steps=counters.slot_steps,
            reserved_slot_steps=counters.reserved_slot_steps,
            internal_slot_steps=counters.internal_slot_steps,
        ),
        blocks=[kvmanager_pb2.Block(reference_count=count, cached=cached) for count, cached in blocks],
    )
