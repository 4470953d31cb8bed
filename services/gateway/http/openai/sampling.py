"""How tokens are chosen, as the core wants it."""

from __future__ import annotations

from gateway.request import EarlyStopping, Guide, SamplingParams
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.bodies import GenerationBody

ALL_TOKENS = -1
"""vLLM's top_k that keeps all; Octavo's is 0."""

RANDOM_SEED = -1
"""vLLM's seed that is none."""

_EARLY_STOPPING: dict[bool | str, EarlyStopping] = {
    True: EarlyStopping.FIRST,
    False: EarlyStopping.HEURISTIC,
    "never": EarlyStopping.NEVER,
}


def decode_sampling(
    body: GenerationBody, guide: Guide | None, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """Sampling parameters.

    Raises:
        HttpError: 400: a value that no check of the core would name.
    """
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=0 if body.top_k == ALL_TOKENS else body.top_k,
        min_p=body.min_p,
        n=body.n,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
        stop_token_ids=body.stop_token_ids or (),
        seed=None if body.seed == RANDOM_SEED else body.seed,
        logprobs=logprobs,
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        skip_special_tokens=body.skip_special_tokens,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias or {},
        best_of=body.best_of,
        beam_width=_beam_width(body),
        length_penalty=body.length_penalty,
        early_stopping=_early_stopping(body.early_stopping),
        guide=guide,
    )


def _beam_width(body: GenerationBody) -> int | None:
    """vLLM's beam searches have as many beams as they return."""
    if body.beam_width is None and body.use_beam_search:
        return body.n or 1
    return body.beam_width


def _early_stopping(stated: bool | str | None) -> EarlyStopping | None:
    if stated is None:
        return None
    if stated not in _EARLY_STOPPING:
        message = f'early_stopping: must be true, false or "never", is {stated!r}'
        raise HttpError(400, message, "invalid_argument", "early_stopping")
    return _EARLY_STOPPING[stated]
