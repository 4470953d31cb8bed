"""A checked request, with everything filled in that the client left out: what the backend and the output side read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.request import EarlyStopping
from gateway.scope import ScopeSpan


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the backend's model can take.

    Attributes:
        max_model_len: Most tokens that a prompt and its answer may have together.
        vocab_size: Token ids are smaller than this.
        block_size: Tokens in a block of key/value memory; only full blocks are kept.
    """

    max_model_len: int
    vocab_size: int
    block_size: int


@dataclass(frozen=True, slots=True)
class PreparedGuide:
    """What the answer must look like.

    Attributes:
        grammar: In `llguidance`'s JSON form.
        field: Which field of the request asked for it.
    """

    grammar: str
    field: str = field(default="sampling.guide", compare=False)


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling values with every default filled in: what the executor and the output side read.

    Attributes:
        logprobs: How many of the most likely tokens to report at each position. None: no log probabilities at all.
        guide: What the answer must look like. None: anything.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    logprobs: int | None
    stop: tuple[str, ...]
    skip_special_tokens: bool
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    guide: PreparedGuide | None


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Beam search instead of sampling. A beam's score is its summed log probability over length^length_penalty."""

    width: int
    length_penalty: float
    early_stopping: EarlyStopping


@dataclass(frozen=True, slots=True)
class PinOrder:
    """The prompt is to stay resident for so many microseconds."""

    pin_id: str
    ttl_us: int


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request, ready for the backend.

    Attributes:
        spans: The scopes of the prompt's tokens, from the first on. Each is narrower than the one before.
        n: Sequences that the backend sends.
        best_of: Sequences that the backend samples, to send the n best of them. 0: n.
        beam: The backend searches, and sends the n best beams.
        kept: Sequences that the client gets. Fewer than n: the best ones, ranked here.
        shows_logprobs: Whether the client gets log probabilities.
        max_tokens: Most tokens for each sequence. 0: whatever fits.
        stop_token_ids: Every token that ends a sequence, the model's own included unless the client ignores them.
        timeout_us: Most microseconds the request may take. 0: no limit.
        response_interval: Seconds of which tokens are sent together. None: as the gateway likes.
        pin: Only the prompt is computed, and stays.
    """

    request_id: str
    model: str
    tenant: str
    prompt_token_ids: list[int]
    spans: tuple[ScopeSpan, ...]
    n: int
    best_of: int
    beam: BeamSearch | None
    kept: int
    shows_logprobs: bool
    max_tokens: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: ResolvedSampling
    timeout_us: int
    priority: int
    report_progress: bool
    response_interval: float | None
    pin: PinOrder | None = None

    @property
    def ranked_by_backend(self) -> bool:
        """Whether the sequences arrive whole, best first, each with a score."""
        return self.best_of > 0 or self.beam is not None

    @property
    def sequences_per_kept(self) -> float:
        """Sequences that are computed for each one that the client gets."""
        return max(self.n, self.best_of, self.beam.width if self.beam else 0) / self.kept
