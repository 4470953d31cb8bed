"""A generation request as the client states it, and as the backend gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen, as the client states it. None is a field left out.

    Fields, meanings and defaults are those of ``octavo.v1.SamplingParams``.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text, tokenized as it is, with the special tokens that the tokenizer adds."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered with the model's chat template."""

    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: Sequence[int]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks for.

    Attributes:
        prompt: What to continue. None: the client gave none, which is refused.
        model: Empty: the only model that is served.
        timeout: Most seconds the request may take, queueing included. None: no limit.
        request_id: Empty: the gateway chooses one.
    """

    prompt: Prompt | None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    model: str = ""
    timeout: float | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the backend's model can take.

    Attributes:
        max_model_len: Most tokens that a prompt and its answer may have together.
        vocab_size: Token ids are smaller than this.
    """

    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling values with every default filled in: what the executor and the output side read.

    Attributes:
        logprobs: How many of the most likely tokens to report at each position. None: no log probabilities at all.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    logprobs: int | None
    stop: tuple[str, ...]
    skip_special_tokens: bool


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request, ready for the backend.

    Attributes:
        max_tokens: Most tokens for each sequence. 0: whatever fits.
        stop_token_ids: Every token that ends a sequence, the model's own included unless the client ignores them.
        salt: Separates prefix caches that must not see each other.
        timeout_us: Most microseconds the request may take. 0: no limit.
    """

    request_id: str
    model: str
    tenant: str
    salt: bytes
    prompt_token_ids: list[int]
    n: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: ResolvedSampling
    timeout_us: int
