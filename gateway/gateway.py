"""The gateway core: checks a request, turns its prompt into token ids, and its tokens back into text."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from gateway.detokenizer import DetokenizerFactory
from gateway.errors import InvalidArgument, NotFound
from gateway.guide_checks import check_guide, field_of
from gateway.guide_compiler import grammar_of
from gateway.output import RequestOutput, SequenceOutput
from gateway.prepared import (
    BeamSearch,
    ModelLimits,
    PinOrder,
    PreparedGuide,
    PreparedRequest,
    ResolvedSampling,
)
from gateway.prompt_encoder import PromptEncoder
from gateway.request import EarlyStopping, GenerationRequest, Guide, PinRequest, Prompt, SamplingParams
from gateway.sampling_checks import check_sampling
from gateway.scope import CacheScope, Identity, RequestScopes, ScopeSpan
from gateway.scope_spans import check_reusable, narrowing, scope_spans
from gateway.stop_strings import StopMatcher, StopPattern
from gateway.tokenizer import Tokenizer
from gateway.validation import (
    check_length,
    check_priority,
    check_request_id,
    check_response_interval,
    check_timeout,
    check_token_ids,
    check_ttl,
    prompt_field,
)

T = TypeVar("T")


class Gateway:
    """Serves one model. Keeps nothing of a request.

    Args:
        tokenizer: The model's.
        model_name: What clients call the model.
        now: The clock that chat templates see.
        random_bits: Gives so many random bits; behind pin ids, scopes of single requests, and what clients leave out.

    Raises:
        TokenizerError: The model's chat template does not parse, or its decoder is not supported.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model_name: str,
        *,
        now: Callable[[], datetime],
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_name = model_name
        self._random_bits = random_bits
        self._prompts = PromptEncoder(tokenizer, now)
        self._detokenizers = DetokenizerFactory(tokenizer)

    def prepare(self, request: GenerationRequest, limits: ModelLimits, identity: Identity) -> PreparedRequest:
        """Checks a request and fills in what the client left out. Whether a guide can be followed is not checked: that
        may take any time (`gateway.guide_compiler.GuideCompiler`).

        Takes time in proportion to the prompt's length, most of it in the tokenizer and outside Python's lock.

        Raises:
            InvalidArgument: A field is wrong.
            NotFound: The model is not served here.
            PermissionDenied: The caller has not joined a shared namespace that it names, or may not ask for a scope.
        """
        self._check_model(request.model)
        check_request_id(request.request_id)
        check_timeout(request.timeout)
        check_priority(request.priority)
        check_response_interval(request.response_interval)
        sampling = request.sampling
        check_sampling(sampling, limits)
        check_guide(sampling, has_eos=bool(self._own_stop_token_ids(limits)))
        token_ids, spans = self._encode(request.prompt, request.scope, limits, identity)
        check_length(_field(request.prompt), len(token_ids), sampling, limits)
        kept = _or_default(sampling.n, 1)
        best_of = _or_default(sampling.best_of, kept)
        # The backend knows nothing of stop strings, so it can't tell where the sequences that it would rank end; and it
        # keeps no log probabilities, so they come with tokens that are sent on at once.
        ranked_here = best_of > kept and (bool(sampling.stop) or sampling.logprobs is not None)
        return PreparedRequest(
            request_id=request.request_id or f"{self._random_bits(128):032x}",
            model=self.model_name,
            tenant=identity.tenant,
            prompt_token_ids=token_ids,
            spans=spans,
            n=best_of if ranked_here else kept,
            best_of=0 if ranked_here or best_of == kept else best_of,
            beam=_beam_search(sampling),
            kept=kept,
            shows_logprobs=sampling.logprobs is not None,
            max_tokens=_or_default(sampling.max_tokens, 0),
            min_tokens=_or_default(sampling.min_tokens, 0),
            stop_token_ids=self._stop_token_ids(sampling, limits),
            sampling=self._resolve(sampling, ranked_here),
            timeout_us=_timeout_us(request.timeout),
            priority=request.priority,
            report_progress=request.report_progress,
            response_interval=request.response_interval,
        )

    def prepare_pin(self, request: PinRequest, limits: ModelLimits, identity: Identity) -> PreparedRequest:
        """Checks a request to keep a prompt resident, and chooses the pin's id.

        Raises:
            InvalidArgument: A field is wrong, the prompt fills no block, or only this request could reuse it.
            NotFound: The model is not served here.
            PermissionDenied: The caller has not joined a shared namespace that it names, or may not ask for a scope.
        """
        self._check_model(request.model)
        check_timeout(request.timeout)
        check_ttl(request.ttl)
        assert request.ttl is not None
        check_reusable(request.prompt, request.scope or identity.default_scope)
        token_ids, spans = self._encode(request.prompt, request.scope, limits, identity)
        field, sampling = _field(request.prompt), SamplingParams()
        check_length(field, len(token_ids), sampling, limits)
        if len(token_ids) < limits.block_size:
            message = f"has {len(token_ids)} tokens; only full blocks are kept, which have {limits.block_size}"
            raise InvalidArgument(field, message)
        pin_id = f"{self._random_bits(128):032x}"
        return PreparedRequest(
            request_id=pin_id,
            model=self.model_name,
            tenant=identity.tenant,
            prompt_token_ids=token_ids,
            spans=spans,
            n=1,
            best_of=0,
            beam=None,
            kept=1,
            shows_logprobs=False,
            max_tokens=1,
            min_tokens=0,
            stop_token_ids=(),
            sampling=self._resolve(sampling, ranked_here=False),
            timeout_us=_timeout_us(request.timeout),
            priority=0,
            report_progress=False,
            response_interval=None,
            pin=PinOrder(pin_id, round(request.ttl * 1_000_000)),
        )

    def tokenize(self, prompt: Prompt | None, limits: ModelLimits, model: str = "") -> list[int]:
        """The token ids of a prompt, however many they are. Scopes play no part in it.

        Raises:
            InvalidArgument: The prompt is missing, empty or not acceptable.
            NotFound: The model is not served here.
        """
        self._check_model(model)
        return self._prompts.encode(prompt, limits)[0]

    def detokenize(self, token_ids: Sequence[int], limits: ModelLimits, model: str = "") -> str:
        """The text of token ids, with special tokens written out.

        Raises:
            InvalidArgument: An id is none of the model's.
            NotFound: The model is not served here.
        """
        self._check_model(model)
        check_token_ids(token_ids, "token_ids", limits.vocab_size)
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def output(self, request: PreparedRequest) -> RequestOutput:
        """Where the tokens that the backend sends for a request become text."""
        patterns = [StopPattern.compile(stop) for stop in request.sampling.stop]
        return RequestOutput(
            [
                SequenceOutput(
                    self._detokenizers.create(skip_special_tokens=request.sampling.skip_special_tokens),
                    StopMatcher(patterns),
                    request.min_tokens,
                )
                for _ in range(request.n)
            ]
        )

    def _check_model(self, model: str) -> None:
        if model not in ("", self.model_name):
            raise NotFound("model", f"only {self.model_name!r} is served here, not {model!r}")

    def _encode(
        self, prompt: Prompt | None, stated: CacheScope | None, limits: ModelLimits, identity: Identity
    ) -> tuple[list[int], tuple[ScopeSpan, ...]]:
        """A prompt's token ids and their scopes."""
        narrowed = narrowing(prompt, stated or identity.default_scope, RequestScopes(identity, self._random_bits))
        token_ids, counts = self._prompts.encode(prompt, limits, [start for start, _ in narrowed[1:]])
        return token_ids, scope_spans(narrowed, counts, len(token_ids))

    def _stop_token_ids(self, sampling: SamplingParams, limits: ModelLimits) -> tuple[int, ...]:
        """The client's stop tokens and the model's own, each once."""
        own = () if sampling.ignore_eos else self._own_stop_token_ids(limits)
        return tuple(dict.fromkeys([*sampling.stop_token_ids, *own]))

    def _own_stop_token_ids(self, limits: ModelLimits) -> tuple[int, ...]:
        return tuple(token for token in self.tokenizer.eos_token_ids if token < limits.vocab_size)

    def _resolve(self, sampling: SamplingParams, ranked_here: bool) -> ResolvedSampling:
        return ResolvedSampling(
            temperature=_or_default(sampling.temperature, 1.0),
            top_p=_or_default(sampling.top_p, 1.0),
            top_k=_or_default(sampling.top_k, 0),
            min_p=_or_default(sampling.min_p, 0.0),
            seed=self._random_bits(64) if sampling.seed is None else sampling.seed,
            # Ranking takes the log probability of each token.
            logprobs=_or_default(sampling.logprobs, 0) if ranked_here else sampling.logprobs,
            stop=tuple(sampling.stop),
            skip_special_tokens=_or_default(sampling.skip_special_tokens, True),
            presence_penalty=_or_default(sampling.presence_penalty, 0.0),
            frequency_penalty=_or_default(sampling.frequency_penalty, 0.0),
            repetition_penalty=_or_default(sampling.repetition_penalty, 1.0),
            logit_bias=sampling.logit_bias,
            guide=_prepare_guide(sampling.guide) if sampling.guide else None,
        )


def _prepare_guide(guide: Guide) -> PreparedGuide:
    try:
        return PreparedGuide(grammar_of(guide), field_of(guide))
    except ValueError as error:  # JSON that is so to Python alone
        raise InvalidArgument(field_of(guide), f"is not JSON: {error}") from error


def _beam_search(sampling: SamplingParams) -> BeamSearch | None:
    if sampling.beam_width is None:
        return None
    return BeamSearch(
        sampling.beam_width,
        _or_default(sampling.length_penalty, 1.0),
        _or_default(sampling.early_stopping, EarlyStopping.HEURISTIC),
    )


def _field(prompt: Prompt | None) -> str:
    return "prompt" if prompt is None else prompt_field(prompt)


def _timeout_us(seconds: float | None) -> int:
    """0: no limit. A limit never rounds to none."""
    return 0 if seconds is None else max(1, round(seconds * 1_000_000))


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value
