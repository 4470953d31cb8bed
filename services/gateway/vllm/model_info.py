"""The model, as the protocol describes it."""

from __future__ import annotations

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from gateway.tokenizer import Tokenizer
from octavo.v1 import inference_pb2


def model_info(model: inference_pb2.Model, tokenizer: Tokenizer) -> vllm.GetModelInfoResponse:
    """Where the model lies is nobody's business: clients know it by its name, and get its tokenizer by GetTokenizer."""
    return vllm.GetModelInfoResponse(
        model_path=model.name,
        served_model_name=model.name,
        is_generation=True,
        max_context_length=model.max_model_len,
        max_req_input_len=model.max_model_len - 1,
        vocab_size=model.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        bos_token_id=_token_id(tokenizer, "bos_token"),
        pad_token_id=_token_id(tokenizer, "pad_token"),
    )


def _token_id(tokenizer: Tokenizer, name: str) -> int:
    """0 where there is none, as the protocol has it."""
    token = tokenizer.special_tokens.get(name)
    token_id = None if token is None else tokenizer.backend.token_to_id(token)
    return token_id or 0
