"""What is noted of a request for the gateway that goes on with it: to bytes and back."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.prepared import BeamSearch, PreparedRequest, ResolvedSampling
from gateway.scope import Scope, ScopeSpan
from octavo.v1 import kvmanager_pb2, token_log_pb2
from services.gateway.codec import (
    EARLY_STOPPING,
    decode_prepared_guide,
    decode_update,
    encode_submission,
    encode_update,
)
from services.gateway.received import Update
from services.rpc.columns import unpack_int32


def encode_request(request: PreparedRequest, deadline: float | None) -> bytes:
    """A request as it begins.

    Args:
        deadline: When its time is over, in seconds since the epoch; None: never.
    """
    record = token_log_pb2.RequestRecord(
        submission=encode_submission(request, 0, None),
        model=request.model,
        stop=request.sampling.stop,
        skip_special_tokens=request.sampling.skip_special_tokens,
        kept=request.kept,
        shows_logprobs=request.shows_logprobs,
    )
    if request.response_interval is not None:
        record.response_interval_us = round(request.response_interval * 1e6)
    if deadline is not None:
        record.deadline.FromMicroseconds(round(deadline * 1e6))
    return record.SerializeToString()


def decode_request(data: bytes, now: float) -> PreparedRequest:
    """The request with the time that it has left, which may be none: less than a microsecond counts as one.

    Args:
        now: Seconds since the epoch.
    """
    record = token_log_pb2.RequestRecord.FromString(data)
    submission = record.submission
    sampling = submission.sampling
    timeout_us = 0
    if record.HasField("deadline"):
        timeout_us = max(1, record.deadline.ToMicroseconds() - round(now * 1e6))
    return PreparedRequest(
        request_id=submission.request_id,
        model=record.model,
        tenant=submission.tenant,
        prompt_token_ids=unpack_int32(submission.prompt_token_ids),
        spans=tuple(
            ScopeSpan(span.num_tokens, Scope(span.salt, span.narrowness, span.owner)) for span in submission.spans
        ),
        n=submission.n,
        best_of=submission.best_of,
        beam=_decode_beam_search(submission.beam_search) if submission.HasField("beam_search") else None,
        kept=record.kept,
        shows_logprobs=record.shows_logprobs,
        max_tokens=submission.max_tokens,
        min_tokens=submission.min_tokens,
        stop_token_ids=tuple(submission.stop_token_ids),
        sampling=ResolvedSampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
            stop=tuple(record.stop),
            skip_special_tokens=record.skip_special_tokens,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=dict(sampling.logit_bias),
            guide=decode_prepared_guide(sampling),
        ),
        timeout_us=timeout_us,
        priority=submission.priority,
        report_progress=submission.report_progress,
        response_interval=record.response_interval_us / 1e6 if record.HasField("response_interval_us") else None,
    )


def _decode_beam_search(message: kvmanager_pb2.BeamSearch) -> BeamSearch:
    early_stopping = EARLY_STOPPING[message.early_stopping]
    assert early_stopping is not None, "a prepared request has one"
    return BeamSearch(message.width, message.length_penalty, early_stopping)


def encode_tokens(updates: Sequence[Update], end: kvmanager_pb2.RequestEnd | None) -> bytes:
    """What came since the record before."""
    return token_log_pb2.TokensRecord(updates=[encode_update(each) for each in updates], end=end).SerializeToString()


def decode_tokens(data: bytes) -> tuple[list[Update], kvmanager_pb2.RequestEnd | None]:
    """As it was given to `encode_tokens`."""
    record = token_log_pb2.TokensRecord.FromString(data)
    return [decode_update(each) for each in record.updates], record.end if record.HasField("end") else None
