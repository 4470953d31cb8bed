"""Requests, steps and results between the core's data classes and the wire."""

from __future__ import annotations

from typing import Any

import pytest
from google.rpc import code_pb2

from kvmanager.errors import (
    DeadlineExceeded,
    ExecutorFailed,
    InvalidRequest,
    PinRefused,
    QueueFull,
)
from kvmanager.kv_events import Tier
from kvmanager.request import FinishReason, PrefixMatchEnd
from kvmanager.request_times import RequestTimes
from kvmanager.spec import BeamParams, EarlyStopping, PinOrder, ResumedSequence, Scope
from kvmanager.step import NewSequence, RequestEnd, SequenceUpdate, Speeds, StepBatch, StoredBlock, Usage
from octavo.v1 import common_pb2, executor_pb2, kvmanager_pb2, memory_pb2
from services.executor.codec import decode_batch
from services.kvmanager.codec import (
    decode_result,
    decode_stored_blocks,
    decode_submission,
    encode_batch,
    encode_end,
    encode_error,
    encode_update,
)
from services.rpc.columns import pack_float32, pack_int32, pack_int64, unpack_tuples


def submission(**fields: Any) -> kvmanager_pb2.Submission:
    return kvmanager_pb2.Submission(handle=3, prompt_token_ids=pack_int32([5, 6, 7]), n=1, **fields)


def test_a_submission_without_anything_special() -> None:
    spec = decode_submission(submission(), session=2, now=10.0)
    assert spec.handle == (2, 3)
    assert spec.prompt_token_ids == [5, 6, 7]
    assert spec.spans == ((0, Scope(owner="default")),)
    assert (spec.tenant, spec.n, spec.best_of, spec.priority) == ("default", 1, 0, 0)
    assert (spec.beam, spec.pin, spec.deadline, spec.report_progress) == (None, None, None, False)


def test_a_submission_with_everything() -> None:
    sampling = common_pb2.SamplingParams(temperature=0.5, seed=9)
    spec = decode_submission(
        submission(
            tenant="acme",
            best_of=4,
            max_tokens=20,
            min_tokens=2,
            stop_token_ids=[1, 2],
            sampling=sampling,
            timeout_us=1_500_000,
            priority=-7,
            report_progress=True,
            spans=[
                kvmanager_pb2.ScopeSpan(num_tokens=2, salt=b"s", owner="shared:docs", narrowness=0),
                kvmanager_pb2.ScopeSpan(num_tokens=1, salt=b"a", narrowness=2),
            ],
        ),
        session=2,
        now=10.0,
    )
    assert spec.spans == ((2, Scope(b"s", "shared:docs", 0)), (1, Scope(b"a", "acme", 2)))
    assert (spec.best_of, spec.max_tokens, spec.min_tokens, spec.priority) == (4, 20, 2, -7)
    assert spec.stop_token_ids == {1, 2}
    assert spec.sampling == sampling
    assert spec.deadline == 11.5
    assert spec.report_progress


@pytest.mark.parametrize(
    ("value", "early_stopping"),
    [
        (common_pb2.EARLY_STOPPING_UNSPECIFIED, EarlyStopping.HEURISTIC),
        (common_pb2.EARLY_STOPPING_HEURISTIC, EarlyStopping.HEURISTIC),
        (common_pb2.EARLY_STOPPING_FIRST, EarlyStopping.FIRST),
        (common_pb2.EARLY_STOPPING_NEVER, EarlyStopping.NEVER),
    ],
)
def test_a_beam_search(value: Any, early_stopping: EarlyStopping) -> None:
    beam = kvmanager_pb2.BeamSearch(width=4, length_penalty=0.7, early_stopping=value)
    assert decode_submission(submission(beam_search=beam), 0, 0.0).beam == BeamParams(4, 0.7, early_stopping)


def test_a_pin_computes_the_prompt_alone() -> None:
    spec = decode_submission(submission(pin=kvmanager_pb2.PinOrder(pin_id="p", ttl_us=2_500_000)), 0, 0.0)
    assert spec.pin == PinOrder("p", 2.5)
    assert spec.max_tokens == 1


def test_a_resumption() -> None:
    sequences = [
        kvmanager_pb2.ResumedSequence(token_ids=pack_int32([7, 8])),
        kvmanager_pb2.ResumedSequence(token_ids=pack_int32([9]), finish_reason=common_pb2.FINISH_REASON_STOP),
    ]
    spec = decode_submission(submission(resumption=kvmanager_pb2.Resumption(sequences=sequences)), 1, 0.0)
    assert spec.resumed == (ResumedSequence([7, 8]), ResumedSequence([9], FinishReason.STOP))
    assert spec.resubmitted


def test_a_request_that_starts_again_was_accepted_before() -> None:
    spec = decode_submission(submission(resumption=kvmanager_pb2.Resumption()), 1, 0.0)
    assert spec.resubmitted
    assert spec.resumed == ()
    assert not decode_submission(submission(), 1, 0.0).resubmitted


@pytest.mark.parametrize(
    "message",
    [
        kvmanager_pb2.Submission(prompt_token_ids=b"123"),
        submission(spans=[kvmanager_pb2.ScopeSpan(num_tokens=-1)]),
        submission(beam_search=kvmanager_pb2.BeamSearch(width=2, early_stopping=9)),  # type: ignore[arg-type]
        submission(resumption=kvmanager_pb2.Resumption(sequences=[kvmanager_pb2.ResumedSequence(token_ids=b"123")])),
        submission(
            resumption=kvmanager_pb2.Resumption(
                sequences=[kvmanager_pb2.ResumedSequence(token_ids=b"1234", finish_reason=9)]  # type: ignore[arg-type]
            )
        ),
    ],
)
def test_a_submission_that_no_gateway_of_ours_sends(message: kvmanager_pb2.Submission) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_submission(message, 0, 0.0)


def test_a_whole_step_comes_through_to_the_executor() -> None:
    """What one side packs the other unpacks."""
    big = 2**40
    new = NewSequence(big, [1, 2, 3], 2, 1, [7, 8], common_pb2.SamplingParams(seed=4), 5, num_candidates=6, ranked=True)
    batch = StepBatch(
        9,
        removed_blocks=[(Tier.DEVICE, 3), (Tier.HOST, 1)],
        forget=[big + 1],
        branches=[(big, big + 2)],
        chosen_tokens=[(big + 2, 33)],
        new_sequences=[new],
        table_edits=[(big, 0, 7), (big + 2, 1, 8)],
        swaps_out=[(1, 2)],
        swaps_in=[(3, 4)],
        block_copies=[(5, 6)],
        row_sequence_ids=[big, big + 2],
        row_num_tokens=[3, 1],
        forks={big: [big + 3, big + 4]},
        stored_blocks=[
            StoredBlock(Tier.DEVICE, 7, b"i" * 32, b"", pack_int32([1, 2, 3]), Scope(b"salt", "acme", 2)),
            StoredBlock(Tier.HOST, 0, b"j" * 32, b"i" * 32, pack_int32([4, 5, 6]), Scope(b"", "shared:docs", 0)),
        ],
    )
    trace = common_pb2.TraceContext(traceparent="00-x")
    message = encode_batch(batch, 12, [trace]).batch
    assert list(message.traces) == [trace]
    assert unpack_tuples(message.removed_blocks, 2) == [(common_pb2.TIER_DEVICE, 3), (common_pb2.TIER_HOST, 1)]
    assert decode_stored_blocks(message.stored_blocks) == batch.stored_blocks, "what comes back is what was told"
    decoded = decode_batch(message)
    assert (decoded.epoch, decoded.step) == (12, 9)
    for name in (
        "forget",
        "branches",
        "chosen_tokens",
        "table_edits",
        "swaps_out",
        "swaps_in",
        "block_copies",
        "row_sequence_ids",
        "row_num_tokens",
        "forks",
    ):
        assert getattr(decoded, name) == getattr(batch, name), name
    (decoded_new,) = decoded.new_sequences
    for name in (
        "sequence_id",
        "token_ids",
        "prompt_length",
        "num_computed",
        "block_table",
        "sample_index",
        "num_candidates",
        "ranked",
    ):
        assert getattr(decoded_new, name) == getattr(new, name), name


def test_a_block_of_a_tier_that_is_not_known_is_nobodys() -> None:
    known = executor_pb2.StoredBlock(block_id=1, tier=common_pb2.TIER_HOST)
    assert [block.block_id for block in decode_stored_blocks([executor_pb2.StoredBlock(), known])] == [1]


def test_a_step_with_rows_alone_has_nothing_else_on_the_wire() -> None:
    message = encode_batch(StepBatch(1, row_sequence_ids=[1], row_num_tokens=[1]), 1, []).batch
    assert {field.name for field, _ in message.ListFields()} == {"epoch", "step", "row_sequence_ids", "row_num_tokens"}


def result(**fields: Any) -> executor_pb2.StepResult:
    tokens = {"sequence_ids": pack_int64([4, 2**40]), "token_ids": pack_int32([7, 8])}
    return executor_pb2.StepResult(step=3, **{**tokens, **fields})


def test_a_result() -> None:
    logprobs = [common_pb2.TokenLogprobs(logprob=-0.5), common_pb2.TokenLogprobs()]
    candidates = executor_pb2.Candidates(
        sequence_id=6, token_ids=pack_int32([1, 2]), logprobs=pack_float32([-0.25, -4.0])
    )
    speeds = memory_pb2.Speeds(
        prefill_tokens_per_s=1, swap_out_blocks_per_s=2, swap_in_blocks_per_s=3, copy_blocks_per_s=4
    )
    failure = executor_pb2.SequenceFailure(sequence_id=4, reason="no way on")
    decoded = decode_result(
        result(
            logprobs=logprobs,
            scores=pack_float32([-0.5, 0.0]),
            candidates=[candidates],
            speeds=speeds,
            failures=[failure],
        )
    )
    assert (decoded.step, decoded.sequence_ids, decoded.token_ids) == (3, [4, 2**40], [7, 8])
    assert decoded.logprobs == logprobs
    assert decoded.scores == [-0.5, 0.0]
    assert decoded.candidates == {6: ([1, 2], [-0.25, -4.0])}
    assert decoded.speeds == Speeds(1, 2, 3, 4)
    assert decoded.failures == {4: "no way on"}


def test_a_result_without_the_rare_things() -> None:
    decoded = decode_result(result())
    assert (decoded.logprobs, decoded.scores, decoded.candidates, decoded.speeds) == ([], [], {}, None)
    assert decoded.failures == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence_ids": b"1234567"},
        {"token_ids": b"123"},
        {"token_ids": pack_int32([1])},
        {"token_ids": b""},
        {"scores": pack_float32([1.0])},
        {"logprobs": [common_pb2.TokenLogprobs()]},
        {"candidates": [executor_pb2.Candidates(sequence_id=1, token_ids=pack_int32([1]))]},
    ],
)
def test_columns_of_a_result_that_do_not_fit_together(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_result(result(**fields))


def test_updates() -> None:
    logprobs = [common_pb2.TokenLogprobs(logprob=-1)]
    update = encode_update(SequenceUpdate((1, 2), 3, 4, [5], list(logprobs), FinishReason.STOP, -0.75), 2)
    assert update == kvmanager_pb2.SequenceUpdate(
        handle=2,
        sequence_index=3,
        position=4,
        token_ids=[5],
        logprobs=logprobs,
        finish_reason=common_pb2.FINISH_REASON_STOP,
        score=-0.75,
    )
    assert not encode_update(SequenceUpdate((1, 2), 0, 0, [5], [], None), 2).HasField("score")


@pytest.mark.parametrize("outcome", [{"usage": Usage(1, 1, 0)}, {"error": DeadlineExceeded("over")}])
def test_where_the_time_went(outcome: dict[str, Any]) -> None:
    times = RequestTimes(waiting=1.5, running=3.0, preempted=0.25, prefill=1.0, preemptions=2)
    encoded = encode_end(RequestEnd((1, 2), **outcome, times=times), 2).times
    assert encoded == kvmanager_pb2.RequestTimes(
        waiting_us=1_500_000, prefill_us=1_000_000, decode_us=2_000_000, preempted_us=250_000, preemptions=2
    )


@pytest.mark.parametrize("end", [None, *PrefixMatchEnd])
def test_the_end_of_a_match(end: PrefixMatchEnd | None) -> None:
    usage = encode_end(RequestEnd((1, 2), Usage(10, 20, 5, end)), 2).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 20, 5)
    name = end.name if end else "UNSPECIFIED"
    assert usage.prefix_match_end == common_pb2.PrefixMatchEnd.Value(f"PREFIX_MATCH_END_{name}")


@pytest.mark.parametrize(
    ("error", "code", "reason", "field"),
    [
        (InvalidRequest("sampling.n", "too many"), code_pb2.INVALID_ARGUMENT, "INVALID_REQUEST", "sampling.n"),
        (QueueFull("full", 2.5), code_pb2.RESOURCE_EXHAUSTED, "QUEUE_FULL", ""),
        (QueueFull("full", 2.5, "acme"), code_pb2.RESOURCE_EXHAUSTED, "TENANT_QUEUE_FULL", ""),
        (PinRefused("no room"), code_pb2.RESOURCE_EXHAUSTED, "PIN_REFUSED", ""),
        (DeadlineExceeded("over"), code_pb2.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "timeout"),
        (ExecutorFailed("again"), code_pb2.INTERNAL, "EXECUTOR_FAILED", ""),
        (ValueError("strange"), code_pb2.INTERNAL, "INTERNAL", ""),
    ],
)
def test_errors(error: Exception, code: int, reason: str, field: str) -> None:
    encoded = encode_error(error)
    assert (encoded.code, encoded.reason, encoded.field, encoded.message) == (code, reason, field, str(error))
    assert bool(encoded.retry_after_us) is (code == code_pb2.RESOURCE_EXHAUSTED)
    if isinstance(error, QueueFull):
        assert encoded.retry_after_us == 2_500_000
