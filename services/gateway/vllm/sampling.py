"""Sampling parameters as the protocol states them."""

from __future__ import annotations

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from gateway.errors import InvalidArgument
from gateway.request import Guide, GuideKind, SamplingParams

MAX_INT32 = 2**31 - 1
RANDOM_SEED = -1
"""The protocol's other way to leave the seed open."""


def decode_sampling(message: vllm.SamplingParams) -> SamplingParams:
    """The protocol's parameters as the core's, whose names they have nearly all.

    A number without presence that is 0 where 0 makes no sense is one left out. What only matters to whoever turns
    tokens into text is not read (`spaces_between_special_tokens`, `include_stop_str_in_output`): answers are tokens.

    Raises:
        InvalidArgument: something is asked for that is not to be had.
    """
    if message.HasField("prompt_logprobs"):
        raise InvalidArgument("sampling.prompt_logprobs", "log probabilities of prompts are not to be had here")
    return SamplingParams(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        temperature=message.temperature if message.HasField("temperature") else None,
        top_p=message.top_p or None,
        # As many as there can be are all of them.
        top_k=min(message.top_k, MAX_INT32),
        min_p=message.min_p,
        n=message.n or None,
        stop=list(message.stop),
        stop_token_ids=list(message.stop_token_ids),
        seed=_seed(message),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        ignore_eos=message.ignore_eos,
        min_tokens=message.min_tokens,
        skip_special_tokens=message.skip_special_tokens,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty or None,
        logit_bias=dict(message.logit_bias),
        guide=_guide(message),
    )


def _seed(message: vllm.SamplingParams) -> int | None:
    """Negative seeds are seeds, too."""
    if not message.HasField("seed") or message.seed == RANDOM_SEED:
        return None
    return int(message.seed) % 2**64


def _guide(message: vllm.SamplingParams) -> Guide | None:
    """Always from the first token on, whatever `grammar_from_first_token` says: there is no other way here."""
    match message.WhichOneof("constraint"):
        case "json_schema":
            return Guide(GuideKind.JSON_SCHEMA, message.json_schema)
        case "json_object":
            return Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}') if message.json_object else None
        case "regex":
            return Guide(GuideKind.REGEX, message.regex)
        case "grammar":
            return Guide(GuideKind.GRAMMAR, message.grammar)
        case "choice":
            return Guide(GuideKind.CHOICE, choices=tuple(message.choice.choices))
        case "structural_tag":
            raise InvalidArgument("sampling.structural_tag", "structural tags are not to be had here; send a grammar")
    return None
