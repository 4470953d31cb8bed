"""Requests to generate: from the protocol to the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from gateway.errors import InvalidArgument
from gateway.request import GenerationRequest, TokenPrompt
from services.gateway.vllm.sampling import decode_sampling

LONGEST_PROMPT = -1
"""In `truncate_prompt_tokens`: as much of the prompt as the model takes."""

_NOT_HERE = {
    "kv_transfer_params": "keys and values are not handed from one engine to another here",
    "kv_transfer_params_json": "keys and values are not handed from one engine to another here",
    "mm_inputs": "only text is served here",
    "extra_mm_inputs": "only text is served here",
    "media_refs": "only text is served here",
}


def decode_request(
    message: vllm.GenerateRequest, encode: Callable[[str], list[int]], max_model_len: int, timeout: float | None
) -> GenerationRequest:
    """The protocol's request as the core's. Its errors name the core's fields.

    Args:
        encode: Turns a text into token ids.
        max_model_len: Most tokens that a prompt and its answer may have together.
        timeout: Seconds that the call has left.

    Raises:
        InvalidArgument: something is asked for that is not to be had.
    """
    for field, _ in message.ListFields():
        if field.name in _NOT_HERE:
            raise InvalidArgument(field.name, _NOT_HERE[field.name])
    if message.data_parallel_rank:
        raise InvalidArgument("data_parallel_rank", f"there is rank 0 alone, not {message.data_parallel_rank}")
    token_ids = _prompt(message, encode)
    return GenerationRequest(
        prompt=None
        if token_ids is None
        else TokenPrompt(_truncated(token_ids, message.sampling_params, max_model_len)),
        sampling=decode_sampling(message.sampling_params),
        timeout=timeout,
        request_id=message.request_id,
    )


def _prompt(message: vllm.GenerateRequest, encode: Callable[[str], list[int]]) -> Sequence[int] | None:
    match message.WhichOneof("input"):
        case "tokenized":
            token_ids: Sequence[int] = message.tokenized.input_ids
            return token_ids
        case "text":
            if not message.text:
                raise InvalidArgument("prompt.text", "must not be empty")
            return encode(message.text)
    return None


def _truncated(token_ids: Sequence[int], sampling: vllm.SamplingParams, max_model_len: int) -> Sequence[int]:
    """The last tokens of a prompt, where there are more than are wanted."""
    if not sampling.HasField("truncate_prompt_tokens"):
        return token_ids
    wanted = sampling.truncate_prompt_tokens
    if wanted == LONGEST_PROMPT:
        wanted = max(1, max_model_len - max(1, sampling.max_tokens))
    if wanted < 1:
        raise InvalidArgument(
            "sampling.truncate_prompt_tokens", f"must be at least 1, or {LONGEST_PROMPT}, is {wanted}"
        )
    return token_ids[-wanted:]
