"""Requests from clients and tokens from the KV manager: from the wire and to it."""

from __future__ import annotations

import grpc

from gateway.errors import InvalidArgument, NotFound, RequestError
from gateway.output import Chunk, FinishReason, RequestOutput, TokenLogprobs, Usage
from gateway.request import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    PreparedRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.rpc.columns import pack_int32
from services.rpc.status import CODES, RpcError

_REASONS = {
    common_pb2.FINISH_REASON_UNSPECIFIED: None,
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}
_WIRE_REASONS = {reason: number for number, reason in _REASONS.items()}


def decode_request(message: inference_pb2.GenerateRequest) -> GenerationRequest:
    timeout = None
    if message.HasField("timeout"):
        timeout = message.timeout.seconds + message.timeout.nanos / 1e9
    return GenerationRequest(
        prompt=decode_prompt(message.prompt),
        sampling=_decode_sampling(message.sampling),
        model=message.model,
        timeout=timeout,
        request_id=message.request_id,
    )


def decode_prompt(message: inference_pb2.Prompt) -> Prompt | None:
    match message.WhichOneof("content"):
        case "text":
            return TextPrompt(message.text)
        case "chat":
            return ChatPrompt([ChatMessage(each.role, each.content) for each in message.chat.messages])
        case "tokens":
            return TokenPrompt(list(message.tokens.token_ids))
    return None


def _decode_sampling(message: common_pb2.SamplingParams) -> SamplingParams:
    given = {
        field.name: getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
        if not field.is_repeated and message.HasField(field.name)
    }
    return SamplingParams(stop=list(message.stop), stop_token_ids=list(message.stop_token_ids), **given)


def encode_submission(
    request: PreparedRequest, handle: int, trace: common_pb2.TraceContext | None
) -> kvmanager_pb2.Submission:
    sampling = request.sampling
    return kvmanager_pb2.Submission(
        handle=handle,
        request_id=request.request_id,
        prompt_token_ids=pack_int32(request.prompt_token_ids),
        salt=request.salt,
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
        ),
        timeout_us=request.timeout_us,
        trace=trace,
        tenant=request.tenant,
    )


def add_update(output: RequestOutput, update: kvmanager_pb2.SequenceUpdate) -> Chunk | None:
    """Hands new tokens to the request's output. Returns what there is to send on."""
    logprobs = [
        TokenLogprobs(each.logprob, list(each.top_token_ids), list(each.top_logprobs)) for each in update.logprobs
    ]
    reason = _REASONS[update.finish_reason]
    return output.add(update.sequence_index, update.position, list(update.token_ids), logprobs, reason)


def encode_chunk(
    chunk: Chunk, request: PreparedRequest, sequence_index: int, usage: Usage | None = None
) -> inference_pb2.GenerateResponse:
    """Log probabilities are left out unless the request asked for them."""
    logprobs = chunk.logprobs if request.sampling.logprobs is not None else ()
    return inference_pb2.GenerateResponse(
        request_id=request.request_id,
        sequence_index=sequence_index,
        position=chunk.position,
        token_ids=chunk.token_ids,
        text=chunk.text,
        logprobs=[
            common_pb2.TokenLogprobs(
                logprob=each.logprob, top_token_ids=each.top_token_ids, top_logprobs=each.top_logprobs
            )
            for each in logprobs
        ],
        finish_reason=_WIRE_REASONS[chunk.finish_reason],
        usage=None if usage is None else encode_usage(usage),
    )


def encode_usage(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def core_error(error: RequestError) -> RpcError:
    """The status of what the core refuses."""
    if isinstance(error, NotFound):
        return RpcError(grpc.StatusCode.NOT_FOUND, str(error), "MODEL_NOT_FOUND", error.field)
    assert isinstance(error, InvalidArgument)
    return RpcError(grpc.StatusCode.INVALID_ARGUMENT, str(error), "INVALID_ARGUMENT", error.field)


def backend_error(error: kvmanager_pb2.RequestError) -> RpcError:
    """The status of what the KV manager refuses or ends early."""
    retry_after = error.retry_after_us / 1e6 if error.retry_after_us else None
    code = CODES.get(error.code, grpc.StatusCode.INTERNAL)
    return RpcError(code, error.message, error.reason, error.field, retry_after)
