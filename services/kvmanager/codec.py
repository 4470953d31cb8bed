"""Requests from gateways, steps for executors, and what comes back: from the wire and to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from google.rpc import code_pb2

from kvmanager.capacity import Capacity
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, PinRefused, QueueFull
from kvmanager.kv_events import Tier
from kvmanager.request import FinishReason, PrefixMatchEnd
from kvmanager.request_times import RequestTimes
from kvmanager.spec import (
    DEFAULT_TENANT,
    BeamParams,
    EarlyStopping,
    PinOrder,
    RequestSpec,
    ResumedSequence,
    Scope,
)
from kvmanager.step import (
    NewSequence,
    Progress,
    RequestEnd,
    SequenceUpdate,
    Speeds,
    StepBatch,
    StepResult,
    StoredBlock,
    Usage,
)
from octavo.v1 import common_pb2, executor_pb2, inference_pb2, kvmanager_pb2, memory_pb2
from services.rpc.columns import (
    pack_int32,
    pack_int64,
    pack_int64_tuples,
    pack_tuples,
    unpack_float32,
    unpack_int32,
    unpack_int64,
)

RETRY_AFTER_US = 1_000_000
"""What a caller is told to wait where nobody can tell how long it will take."""

_EARLY_STOPPING = {
    common_pb2.EARLY_STOPPING_UNSPECIFIED: EarlyStopping.HEURISTIC,
    common_pb2.EARLY_STOPPING_HEURISTIC: EarlyStopping.HEURISTIC,
    common_pb2.EARLY_STOPPING_FIRST: EarlyStopping.FIRST,
    common_pb2.EARLY_STOPPING_NEVER: EarlyStopping.NEVER,
}
_FINISH_REASONS = {
    None: common_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}
_PREFIX_MATCH_ENDS = {
    None: common_pb2.PREFIX_MATCH_END_UNSPECIFIED,
    PrefixMatchEnd.NEVER_SEEN: common_pb2.PREFIX_MATCH_END_NEVER_SEEN,
    PrefixMatchEnd.EVICTED: common_pb2.PREFIX_MATCH_END_EVICTED,
    PrefixMatchEnd.OTHER_SCOPE: common_pb2.PREFIX_MATCH_END_OTHER_SCOPE,
    PrefixMatchEnd.PARTIAL_BLOCK: common_pb2.PREFIX_MATCH_END_PARTIAL_BLOCK,
    PrefixMatchEnd.LAST_TOKEN: common_pb2.PREFIX_MATCH_END_LAST_TOKEN,
}

_TIERS = {Tier.DEVICE: common_pb2.TIER_DEVICE, Tier.HOST: common_pb2.TIER_HOST}
_TIERS_BY_NUMBER: dict[int, Tier] = {number: tier for tier, number in _TIERS.items()}

# Requests


def decode_submission(message: kvmanager_pb2.Submission, session: int, now: float) -> RequestSpec:
    """Raises ValueError where a column's length or a number is impossible."""
    tenant = message.tenant or DEFAULT_TENANT
    pin = PinOrder(message.pin.pin_id, message.pin.ttl_us / 1e6) if message.HasField("pin") else None
    return RequestSpec(
        handle=(session, message.handle),
        prompt_token_ids=unpack_int32(message.prompt_token_ids),
        spans=_decode_spans(message.spans, tenant),
        tenant=tenant,
        n=message.n,
        best_of=message.best_of,
        beam=_decode_beam_search(message.beam_search) if message.HasField("beam_search") else None,
        max_tokens=1 if pin else message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        sampling=message.sampling,
        deadline=now + message.timeout_us / 1e6 if message.timeout_us else None,
        priority=message.priority,
        report_progress=message.report_progress,
        pin=pin,
        resubmitted=message.HasField("resumption"),
        resumed=tuple(map(_decode_resumed_sequence, message.resumption.sequences)),
    )


def _decode_resumed_sequence(message: kvmanager_pb2.ResumedSequence) -> ResumedSequence:
    for reason, number in _FINISH_REASONS.items():
        if number == message.finish_reason:
            return ResumedSequence(unpack_int32(message.token_ids), reason)
    raise ValueError(f"finish_reason is {message.finish_reason}, which is none of its values")


def _decode_spans(spans: Sequence[kvmanager_pb2.ScopeSpan], tenant: str) -> tuple[tuple[int, Scope], ...]:
    """A request without any has its tenant's own scope."""
    if not spans:
        return ((0, Scope(owner=tenant)),)
    if any(span.num_tokens < 0 for span in spans):
        raise ValueError("a span's num_tokens is negative")
    return tuple((span.num_tokens, Scope(span.salt, span.owner or tenant, span.narrowness)) for span in spans)


def _decode_beam_search(message: kvmanager_pb2.BeamSearch) -> BeamParams:
    early_stopping = _EARLY_STOPPING.get(message.early_stopping)
    if early_stopping is None:
        raise ValueError(f"early_stopping is {message.early_stopping}, which is none of its values")
    return BeamParams(message.width, message.length_penalty, early_stopping)


# Executors


def decode_capacity(message: executor_pb2.DescribeResponse) -> Capacity:
    model = message.model
    return Capacity(
        model.num_blocks,
        model.block_size,
        model.max_model_len,
        message.num_host_blocks,
        message.max_batched_tokens,
        message.max_sequences,
    )


def decode_speeds(message: memory_pb2.Speeds) -> Speeds:
    return Speeds(
        message.prefill_tokens_per_s,
        message.swap_out_blocks_per_s,
        message.swap_in_blocks_per_s,
        message.copy_blocks_per_s,
    )


# Steps. Most have nothing but rows: a field that is not touched costs nothing.


def encode_batch(
    batch: StepBatch, epoch: int, traces: Sequence[common_pb2.TraceContext]
) -> executor_pb2.ExecuteRequest:
    request = executor_pb2.ExecuteRequest()
    message = request.batch
    message.epoch = epoch
    message.step = batch.step
    message.row_sequence_ids = pack_int64(batch.row_sequence_ids)
    message.row_num_tokens = pack_int32(batch.row_num_tokens)
    if batch.table_edits:
        message.table_edits = pack_int64_tuples(batch.table_edits)
    if batch.forget:
        message.forget = pack_int64(batch.forget)
    if batch.new_sequences:
        message.new_sequences.extend([_encode_sequence(new) for new in batch.new_sequences])
    if batch.block_copies:
        message.block_copies = pack_tuples(batch.block_copies)
    if batch.swaps_out:
        message.swaps_out = pack_tuples(batch.swaps_out)
    if batch.swaps_in:
        message.swaps_in = pack_tuples(batch.swaps_in)
    if batch.branches:
        message.branches = pack_int64_tuples(batch.branches)
    if batch.chosen_tokens:
        message.chosen_tokens = pack_int64_tuples(batch.chosen_tokens)
    for parent, children in batch.forks.items():
        message.forks.add(parent_sequence_id=parent, child_sequence_ids=pack_int64(children))
    if batch.removed_blocks:
        message.removed_blocks = pack_tuples([(_TIERS[tier], block_id) for tier, block_id in batch.removed_blocks])
    for block in batch.stored_blocks:
        scope = block.scope
        message.stored_blocks.add(
            block_id=block.block_id,
            tier=_TIERS[block.tier],
            identity=block.identity,
            parent_identity=block.parent,
            token_ids=block.tokens,
            salt=scope.salt,
            owner=scope.owner,
            narrowness=scope.narrowness,
        )
    if traces:
        message.traces.extend(traces)
    return request


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
        num_candidates=new.num_candidates,
        ranked=new.ranked,
    )


def decode_stored_blocks(messages: Iterable[executor_pb2.StoredBlock]) -> list[StoredBlock]:
    """What an executor says of its blocks. Those of no tier are left out: nobody can ask for them."""
    scopes: dict[tuple[bytes, str, int], Scope] = {}  # a few, of many blocks
    blocks = []
    for message in messages:
        tier = _TIERS_BY_NUMBER.get(message.tier)
        if tier is None:
            continue
        key = message.salt, message.owner, message.narrowness
        scope = scopes.get(key)
        if scope is None:
            scope = scopes[key] = Scope(*key)
        tokens = message.token_ids
        blocks.append(StoredBlock(tier, message.block_id, message.identity, message.parent_identity, tokens, scope))
    return blocks


def decode_result(message: executor_pb2.StepResult) -> StepResult:
    """Raises ValueError where a column's length is impossible."""
    sequence_ids = unpack_int64(message.sequence_ids)
    token_ids = unpack_int32(message.token_ids)
    logprobs = cast(list[object], list(message.logprobs))
    scores = unpack_float32(message.scores)
    for name, column in (("token_ids", token_ids), ("logprobs", logprobs), ("scores", scores)):
        if len(column) != len(sequence_ids) and (column or column is token_ids):
            raise ValueError(f"{name} has {len(column)} entries for {len(sequence_ids)} sequences")
    candidates = {each.sequence_id: _decode_candidates(each) for each in message.candidates}
    speeds = decode_speeds(message.speeds) if message.HasField("speeds") else None
    failures = {each.sequence_id: each.reason for each in message.failures}
    return StepResult(message.step, sequence_ids, token_ids, logprobs, scores, candidates, speeds, failures)


def _decode_candidates(message: executor_pb2.Candidates) -> tuple[list[int], list[float]]:
    token_ids, logprobs = unpack_int32(message.token_ids), unpack_float32(message.logprobs)
    if len(token_ids) != len(logprobs):
        raise ValueError(f"candidates: {len(logprobs)} log probabilities for {len(token_ids)} tokens")
    return token_ids, logprobs


# What gateways hear


def encode_update(update: SequenceUpdate, handle: int) -> kvmanager_pb2.SequenceUpdate:
    return kvmanager_pb2.SequenceUpdate(
        handle=handle,
        sequence_index=update.sample_index,
        position=update.position,
        token_ids=update.token_ids,
        logprobs=cast(list[common_pb2.TokenLogprobs], update.logprobs),
        finish_reason=_FINISH_REASONS[update.finish_reason],
        score=update.score,
    )


def encode_progress(progress: Progress, handle: int) -> kvmanager_pb2.Progress:
    prefill = inference_pb2.PrefillProgress(
        computed_tokens=progress.computed_tokens, prompt_tokens=progress.prompt_tokens
    )
    return kvmanager_pb2.Progress(handle=handle, prefill=prefill)


def encode_end(end: RequestEnd, handle: int) -> kvmanager_pb2.RequestEnd:
    times = None if end.times is None else _encode_times(end.times)
    if end.usage is None:
        assert end.error is not None
        return kvmanager_pb2.RequestEnd(handle=handle, error=encode_error(end.error), times=times)
    return kvmanager_pb2.RequestEnd(handle=handle, usage=_encode_usage(end.usage), times=times)


def _encode_times(times: RequestTimes) -> kvmanager_pb2.RequestTimes:
    return kvmanager_pb2.RequestTimes(
        waiting_us=round(times.waiting * 1e6),
        prefill_us=round(times.to_first_token * 1e6),
        decode_us=round(times.decode * 1e6),
        preempted_us=round(times.preempted * 1e6),
        preemptions=times.preemptions,
    )


def _encode_usage(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        prefix_match_end=_PREFIX_MATCH_ENDS[usage.prefix_match_end],
    )


def encode_error(error: Exception) -> kvmanager_pb2.RequestError:
    """The status of each kind of refusal."""
    message = str(error)
    if isinstance(error, InvalidRequest):
        return kvmanager_pb2.RequestError(
            code=code_pb2.INVALID_ARGUMENT, message=message, field=error.field, reason="INVALID_REQUEST"
        )
    if isinstance(error, QueueFull):
        return kvmanager_pb2.RequestError(
            code=code_pb2.RESOURCE_EXHAUSTED,
            message=message,
            reason="QUEUE_FULL" if error.tenant is None else "TENANT_QUEUE_FULL",
            retry_after_us=int(error.retry_after * 1e6),
        )
    if isinstance(error, PinRefused):
        return kvmanager_pb2.RequestError(
            code=code_pb2.RESOURCE_EXHAUSTED, message=message, reason="PIN_REFUSED", retry_after_us=RETRY_AFTER_US
        )
    if isinstance(error, DeadlineExceeded):
        return kvmanager_pb2.RequestError(
            code=code_pb2.DEADLINE_EXCEEDED, message=message, field="timeout", reason="DEADLINE_EXCEEDED"
        )
    reason = "EXECUTOR_FAILED" if isinstance(error, ExecutorFailed) else "INTERNAL"
    return kvmanager_pb2.RequestError(code=code_pb2.INTERNAL, message=message, reason=reason)


def encode_unavailable(message: str, reason: str = "UNAVAILABLE") -> kvmanager_pb2.RequestError:
    return kvmanager_pb2.RequestError(
        code=code_pb2.UNAVAILABLE, message=message, reason=reason, retry_after_us=RETRY_AFTER_US
    )
