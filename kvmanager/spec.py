"""What a gateway asks for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvmanager.request import FinishReason

DEFAULT_TENANT = "default"


class EarlyStopping(Enum):
    """When a beam search has found enough; the values of the parameter of that name in `transformers`."""

    HEURISTIC = False
    FIRST = True
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Beam search instead of sampling. `length_penalty`: a score is a sum of log probabilities / length**penalty."""

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC


@dataclass(frozen=True, slots=True)
class Scope:
    """Who may reuse keys and values.

    Attributes:
        salt: part of the identity of every block of this scope.
        owner: the account that the blocks are charged to: a tenant, or a shared namespace.
        narrowness: of two scopes in one block the one with the higher number counts.
    """

    salt: bytes = b""
    owner: str = DEFAULT_TENANT
    narrowness: int = 0


@dataclass(frozen=True, slots=True)
class PinOrder:
    """The prompt is to stay resident.

    Attributes:
        pin_id: the caller's name for the pin, unique.
        ttl: seconds from when it has been computed.
    """

    pin_id: str
    ttl: float


@dataclass(frozen=True, slots=True)
class ResumedSequence:
    """What one sequence of a request has so far.

    Attributes:
        token_ids: its output, at least one token.
        finish_reason: of one that is over, and whose gateway knows so.
    """

    token_ids: list[int]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a gateway asks for.

    Attributes:
        handle: the caller's name for the request, unique while it lives.
        prompt_token_ids: at least one.
        spans: (tokens, scope) from the prompt's first token on; what follows them has the last one's scope.
        tenant: whom the request belongs to.
        n: sequences of the answer.
        best_of: sequences to sample, of which the n best are returned; 0 for n.
        beam: beam search; n of its beams are returned.
        max_tokens: output tokens of each sequence; 0 for whatever fits the context and the pool.
        min_tokens: no stop token counts before this many.
        stop_token_ids: tokens that end a sequence.
        sampling: what only the executor reads; passed on unread.
        deadline: on the caller's monotonic clock, in seconds; None for never.
        priority: read by the policy `priority`; higher goes first.
        report_progress: say how much of the prompt has been computed.
        pin: compute only the prompt, and keep it.
        resubmitted: a KV manager that is gone had accepted it, so no limit of the queue refuses it.
        resumed: what it had got there, for each of its n sequences; empty where it starts again.
    """

    handle: Hashable
    prompt_token_ids: list[int]
    spans: tuple[tuple[int, Scope], ...] = ((0, Scope()),)
    tenant: str = DEFAULT_TENANT
    n: int = 1
    best_of: int = 0
    beam: BeamParams | None = None
    max_tokens: int = 0
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    sampling: object = None
    deadline: float | None = None
    priority: int = 0
    report_progress: bool = False
    pin: PinOrder | None = None
    resubmitted: bool = False
    resumed: tuple[ResumedSequence, ...] = ()

    @property
    def num_sequences(self) -> int:
        """Sequences that it has at once."""
        return self.beam.width if self.beam else max(self.n, self.best_of)
