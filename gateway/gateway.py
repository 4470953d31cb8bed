"""The gateway core: checks a request, turns its prompt into token ids, and its tokens back into text."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from gateway.chat import ChatTemplate
from gateway.detokenizer import DetokenizerFactory
from gateway.errors import InvalidArgument, NotFound
from gateway.output import RequestOutput, SequenceOutput
from gateway.request import (
    GenerationRequest,
    ModelLimits,
    PreparedRequest,
    Prompt,
    ResolvedSampling,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from gateway.scope import DEFAULT_TENANT, tenant_salt
from gateway.stop_strings import StopMatcher, StopPattern
from gateway.tokenizer import Tokenizer
from gateway.validation import (
    check_length,
    check_prompt,
    check_request_id,
    check_sampling,
    check_timeout,
    check_token_ids,
    prompt_field,
)

T = TypeVar("T")


class Gateway:
    """Serves one model. Keeps nothing of a request.

    Args:
        tokenizer: The model's.
        model_name: What clients call the model.
        now: The clock that chat templates see.
        random_bits: Gives so many random bits; behind seeds and request ids that the client left out.

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
        self._chat_template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens, now)
        self._detokenizers = DetokenizerFactory(tokenizer)

    def prepare(self, request: GenerationRequest, limits: ModelLimits) -> PreparedRequest:
        """Checks a request and fills in what the client left out.

        Takes time in proportion to the prompt's length, most of it in the tokenizer and outside Python's lock.

        Raises:
            InvalidArgument: A field is wrong.
            NotFound: The model is not served here.
        """
        self._check_model(request.model)
        check_request_id(request.request_id)
        check_timeout(request.timeout)
        sampling = request.sampling
        check_sampling(sampling, limits)
        if request.prompt is None:
            raise InvalidArgument("prompt", "is missing")
        prompt_token_ids = self._encode(request.prompt, limits)
        check_length(prompt_field(request.prompt), len(prompt_token_ids), sampling, limits)
        return PreparedRequest(
            request_id=request.request_id or f"{self._random_bits(128):032x}",
            model=self.model_name,
            tenant=DEFAULT_TENANT,
            salt=tenant_salt(DEFAULT_TENANT),
            prompt_token_ids=prompt_token_ids,
            n=_or_default(sampling.n, 1),
            max_tokens=_or_default(sampling.max_tokens, 0),
            min_tokens=_or_default(sampling.min_tokens, 0),
            stop_token_ids=self._stop_token_ids(sampling, limits),
            sampling=self._resolve(sampling),
            timeout_us=0 if request.timeout is None else max(1, round(request.timeout * 1_000_000)),
        )

    def tokenize(self, prompt: Prompt | None, limits: ModelLimits, model: str = "") -> list[int]:
        """The token ids of a prompt, however many they are.

        Raises:
            InvalidArgument: The prompt is missing, empty or not acceptable.
            NotFound: The model is not served here.
        """
        self._check_model(model)
        if prompt is None:
            raise InvalidArgument("prompt", "is missing")
        return self._encode(prompt, limits)

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
            raise NotFound("model", f"{model!r} is not served here, only {self.model_name!r} is")

    def _encode(self, prompt: Prompt, limits: ModelLimits) -> list[int]:
        check_prompt(prompt)
        if isinstance(prompt, TokenPrompt):
            check_token_ids(prompt.token_ids, "prompt.tokens.token_ids", limits.vocab_size)
            return list(prompt.token_ids)
        field = prompt_field(prompt)
        if isinstance(prompt, TextPrompt):
            token_ids = self._encode_text(prompt.text, field, add_special_tokens=True)
        else:
            # The template has written the special tokens already.
            token_ids = self._encode_text(self._chat_template.render(prompt.messages), field, add_special_tokens=False)
        if not token_ids:
            raise InvalidArgument(field, "has no tokens")
        if max(token_ids) >= limits.vocab_size:
            raise InvalidArgument(field, f"has token {max(token_ids)}; the model's go to {limits.vocab_size - 1}")
        return token_ids

    def _encode_text(self, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(field, "is not valid Unicode text") from error
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _stop_token_ids(self, sampling: SamplingParams, limits: ModelLimits) -> tuple[int, ...]:
        """The client's stop tokens and the model's own, each once."""
        own = () if sampling.ignore_eos else self.tokenizer.eos_token_ids
        return tuple(dict.fromkeys([*sampling.stop_token_ids, *(token for token in own if token < limits.vocab_size)]))

    def _resolve(self, sampling: SamplingParams) -> ResolvedSampling:
        return ResolvedSampling(
            temperature=_or_default(sampling.temperature, 1.0),
            top_p=_or_default(sampling.top_p, 1.0),
            top_k=_or_default(sampling.top_k, 0),
            min_p=_or_default(sampling.min_p, 0.0),
            seed=self._random_bits(64) if sampling.seed is None else sampling.seed,
            logprobs=sampling.logprobs,
            stop=tuple(sampling.stop),
            skip_special_tokens=_or_default(sampling.skip_special_tokens, True),
        )


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value
