"""Requests from clients and tokens from the KV manager: from the wire and to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
from google.protobuf.duration_pb2 import Duration

from gateway.errors import InvalidArgument, NotFound, PermissionDenied, RequestError, ScopeTooWide
from gateway.output import Chunk, FinishReason, TokenLogprobs
from gateway.prepared import BeamSearch, PreparedGuide, PreparedRequest
from gateway.request import (
    ChatMessage,
    ChatPrompt,
    EarlyStopping,
    GenerationRequest,
    Guide,
    GuideKind,
    PinRequest,
    Prompt,
    SamplingParams,
    Segment,
    SegmentedPrompt,
    TextPrompt,
    TokenPrompt,
)
from gateway.scope import TENANT_SCOPE, CacheScope, ScopeLevel
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.gateway.received import ReceivedSequence, Update
from services.rpc.columns import pack_int32, unpack_int32, unpack_int64
from services.rpc.status import CODES, RpcError

_REASONS = {
    common_pb2.FINISH_REASON_UNSPECIFIED: None,
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}
_WIRE_REASONS = {reason: number for number, reason in _REASONS.items()}

EARLY_STOPPING = {
    common_pb2.EARLY_STOPPING_UNSPECIFIED: None,
    common_pb2.EARLY_STOPPING_HEURISTIC: EarlyStopping.HEURISTIC,
    common_pb2.EARLY_STOPPING_FIRST: EarlyStopping.FIRST,
    common_pb2.EARLY_STOPPING_NEVER: EarlyStopping.NEVER,
}
_WIRE_EARLY_STOPPING = {value: number for number, value in EARLY_STOPPING.items()}

_SCOPES = {
    "request": CacheScope(ScopeLevel.REQUEST),
    "app": CacheScope(ScopeLevel.APP),
    "tenant": TENANT_SCOPE,
    None: CacheScope(None),
}


# --- From clients: what can't be told in plain data is refused with InvalidArgument ---------------------------------


def decode_request(message: inference_pb2.GenerateRequest) -> GenerationRequest:
    return GenerationRequest(
        prompt=decode_prompt(message.prompt),
        sampling=_decode_sampling(message.sampling),
        model=message.model,
        timeout=_seconds(message.timeout) if message.HasField("timeout") else None,
        request_id=message.request_id,
        priority=message.priority,
        scope=_decode_scope(message.cache_scope) if message.HasField("cache_scope") else None,
        report_progress=message.report_progress,
        response_interval=_seconds(message.response_interval) if message.HasField("response_interval") else None,
    )


def decode_pin_request(message: inference_pb2.PinPrefixRequest) -> PinRequest:
    return PinRequest(
        prompt=decode_prompt(message.prompt),
        ttl=_seconds(message.ttl) if message.HasField("ttl") else None,
        model=message.model,
        timeout=_seconds(message.timeout) if message.HasField("timeout") else None,
        scope=_decode_scope(message.cache_scope) if message.HasField("cache_scope") else None,
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def decode_prompt(message: inference_pb2.Prompt) -> Prompt | None:
    match message.WhichOneof("content"):
        case "text":
            return TextPrompt(message.text)
        case "chat":
            return ChatPrompt([_decode_message(each) for each in message.chat.messages])
        case "tokens":
            return TokenPrompt(list(message.tokens.token_ids))
        case "segmented":
            return SegmentedPrompt([_decode_segment(each) for each in message.segmented.segments])
    return None


def _decode_message(message: inference_pb2.ChatMessage) -> ChatMessage:
    return ChatMessage(message.role, message.content)


def _decode_segment(message: inference_pb2.Segment) -> Segment:
    content: TextPrompt | ChatMessage | TokenPrompt | None = None
    match message.WhichOneof("content"):
        case "text":
            content = TextPrompt(message.text)
        case "message":
            content = _decode_message(message.message)
        case "tokens":
            content = TokenPrompt(list(message.tokens.token_ids))
    return Segment(content, _decode_scope(message.cache_scope) if message.HasField("cache_scope") else None)


def _decode_scope(message: inference_pb2.CacheScope) -> CacheScope:
    level = message.WhichOneof("scope")
    return CacheScope(ScopeLevel.SHARED, message.shared) if level == "shared" else _SCOPES[level]


def _decode_sampling(message: common_pb2.SamplingParams) -> SamplingParams:
    given = {field.name: value for field, value in message.ListFields() if field.has_presence}
    if message.early_stopping not in EARLY_STOPPING:
        raise InvalidArgument("sampling.early_stopping", f"{message.early_stopping} is not a value that is known here")
    return SamplingParams(
        stop=list(message.stop),
        stop_token_ids=list(message.stop_token_ids),
        logit_bias=dict(message.logit_bias),
        early_stopping=EARLY_STOPPING[message.early_stopping],
        **given | {"guide": _decode_guide(message.guide) if message.HasField("guide") else None},
    )


def _decode_guide(message: common_pb2.Guide) -> Guide:
    match message.WhichOneof("kind"):
        case None:
            return Guide(None)
        case "choice":
            return Guide(GuideKind.CHOICE, choices=tuple(message.choice.choices))
        case kind:
            return Guide(GuideKind(kind), getattr(message, kind))


# --- To the KV manager ----------------------------------------------------------------------------------------------


def encode_submission(
    request: PreparedRequest, handle: int, trace: common_pb2.TraceContext | None
) -> kvmanager_pb2.Submission:
    sampling = request.sampling
    return kvmanager_pb2.Submission(
        handle=handle,
        request_id=request.request_id,
        prompt_token_ids=pack_int32(request.prompt_token_ids),
        spans=[
            kvmanager_pb2.ScopeSpan(
                num_tokens=span.num_tokens,
                salt=span.scope.salt,
                narrowness=span.scope.narrowness,
                owner=span.scope.owner,
            )
            for span in request.spans
        ],
        n=request.n,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        stop_token_ids=request.stop_token_ids,
        sampling=common_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            logprobs=sampling.logprobs,
            min_tokens=request.min_tokens,
            stop_token_ids=request.stop_token_ids,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=sampling.logit_bias,
            guide=common_pb2.Guide(grammar=sampling.guide.grammar) if sampling.guide else None,
        ),
        timeout_us=request.timeout_us,
        trace=trace,
        tenant=request.tenant,
        priority=request.priority,
        best_of=request.best_of,
        beam_search=_encode_beam_search(request.beam) if request.beam else None,
        report_progress=request.report_progress,
        pin=kvmanager_pb2.PinOrder(pin_id=request.pin.pin_id, ttl_us=request.pin.ttl_us) if request.pin else None,
    )


def decode_prepared_guide(sampling: common_pb2.SamplingParams) -> PreparedGuide | None:
    """As `encode_submission` told of it."""
    return PreparedGuide(sampling.guide.grammar) if sampling.HasField("guide") else None


def encode_resumption(sequences: Sequence[ReceivedSequence]) -> kvmanager_pb2.Resumption | None:
    """What a request's sequences have, for it to go on from there. None where one has nothing: it starts anew."""
    if not all(sequence.token_ids for sequence in sequences):
        return None
    return kvmanager_pb2.Resumption(
        sequences=[
            kvmanager_pb2.ResumedSequence(
                token_ids=pack_int32(sequence.token_ids), finish_reason=_WIRE_REASONS[sequence.finish_reason]
            )
            for sequence in sequences
        ]
    )


def _encode_beam_search(beam: BeamSearch) -> kvmanager_pb2.BeamSearch:
    return kvmanager_pb2.BeamSearch(
        width=beam.width,
        length_penalty=beam.length_penalty,
        early_stopping=_WIRE_EARLY_STOPPING[beam.early_stopping],
    )


# --- From the KV manager, and to clients ----------------------------------------------------------------------------


def decode_tokens(columns: kvmanager_pb2.TokenColumns) -> Iterator[tuple[int, Update]]:
    """New tokens of each of many sequences, by handle.

    Raises:
        ValueError: the columns' lengths do not go together.
    """
    handles, token_ids = unpack_int64(columns.handles), unpack_int32(columns.token_ids)
    indices = unpack_int32(columns.sequence_indices) or [0] * len(handles)
    counts = unpack_int32(columns.counts) or [1] * len(handles)
    if len(token_ids) != sum(counts) or min(counts, default=1) < 1:
        raise ValueError(f"{len(token_ids)} tokens for rows of {counts}")
    start = 0
    for handle, index, position, count in zip(handles, indices, unpack_int32(columns.positions), counts, strict=True):
        yield handle, Update(index, position, token_ids[start : start + count])
        start += count


def decode_update(update: kvmanager_pb2.SequenceUpdate) -> Update:
    return Update(
        update.sequence_index,
        update.position,
        list(update.token_ids),
        [TokenLogprobs(each.logprob, list(each.top_token_ids), list(each.top_logprobs)) for each in update.logprobs],
        _REASONS[update.finish_reason],
        update.score if update.HasField("score") else None,
    )


def encode_update(update: Update) -> kvmanager_pb2.SequenceUpdate:
    """As a KV manager says it, but for the handle."""
    return kvmanager_pb2.SequenceUpdate(
        sequence_index=update.sequence_index,
        position=update.position,
        token_ids=update.token_ids,
        logprobs=_encode_logprobs(update.logprobs),
        finish_reason=_WIRE_REASONS[update.finish_reason],
        score=update.score,
    )


def _encode_logprobs(logprobs: Sequence[TokenLogprobs]) -> list[common_pb2.TokenLogprobs]:
    return [
        common_pb2.TokenLogprobs(logprob=each.logprob, top_token_ids=each.top_token_ids, top_logprobs=each.top_logprobs)
        for each in logprobs
    ]


class ResponseEncoder:
    """Chunks of one request as the bytes of responses.

    Most have the same few fields. They are set in a message that has the others already, which takes a third of the
    time of making one.
    """

    def __init__(self, request: PreparedRequest) -> None:
        self._request = request
        self._plain = inference_pb2.GenerateResponse(request_id=request.request_id)

    def progress(self, progress: inference_pb2.PrefillProgress) -> bytes:
        return inference_pb2.GenerateResponse(
            request_id=self._request.request_id, progress=progress
        ).SerializeToString()

    def chunk(self, chunk: Chunk, sequence_index: int, usage: common_pb2.Usage | None = None) -> bytes:
        """Log probabilities are left out unless the request asked for them."""
        if usage is not None or self._request.shows_logprobs or chunk.finish_reason is not None:
            return encode_chunk(chunk, self._request, sequence_index, usage).SerializeToString()
        message = self._plain
        message.sequence_index = sequence_index
        message.position = chunk.position
        message.token_ids[:] = chunk.token_ids
        message.text = chunk.text
        return message.SerializeToString()


def encode_chunk(
    chunk: Chunk, request: PreparedRequest, sequence_index: int, usage: common_pb2.Usage | None = None
) -> inference_pb2.GenerateResponse:
    """Log probabilities are left out unless the request asked for them."""
    logprobs = chunk.logprobs if request.shows_logprobs else ()
    return inference_pb2.GenerateResponse(
        request_id=request.request_id,
        sequence_index=sequence_index,
        position=chunk.position,
        token_ids=chunk.token_ids,
        text=chunk.text,
        logprobs=_encode_logprobs(logprobs),
        finish_reason=_WIRE_REASONS[chunk.finish_reason],
        usage=usage,
        score=chunk.score,
    )


def core_error(error: RequestError) -> RpcError:
    """The status of what the core refuses."""
    if isinstance(error, NotFound):
        return RpcError(grpc.StatusCode.NOT_FOUND, str(error), "MODEL_NOT_FOUND", error.field)
    if isinstance(error, PermissionDenied):
        reason = "SCOPE_TOO_WIDE" if isinstance(error, ScopeTooWide) else "NAMESPACE_NOT_JOINED"
        return RpcError(grpc.StatusCode.PERMISSION_DENIED, str(error), reason, error.field)
    assert isinstance(error, InvalidArgument)
    return RpcError(grpc.StatusCode.INVALID_ARGUMENT, str(error), "INVALID_ARGUMENT", error.field)


def backend_error(error: kvmanager_pb2.RequestError) -> RpcError:
    """The status of what the KV manager refuses or ends early."""
    retry_after = error.retry_after_us / 1e6 if error.retry_after_us else None
    code = CODES.get(error.code, grpc.StatusCode.INTERNAL)
    return RpcError(code, error.message, error.reason, error.field, retry_after)
