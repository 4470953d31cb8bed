"""A request and its sequences, as the KV manager sees them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from kvmanager.block import Block


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a gateway asks for.

    Attributes:
        handle: the caller's name for the request, unique while it lives.
        prompt_token_ids: at least one.
        salt: part of every block's identity in the prefix cache.
        n: parallel samples of the one prompt.
        max_tokens: output tokens of each sequence; 0 for whatever fits the context and the pool.
        min_tokens: no stop token counts before this many.
        stop_token_ids: tokens that end a sequence.
        sampling: what only the executor reads; passed on unread.
        deadline: on the caller's monotonic clock, in seconds; None for never.
    """

    handle: Hashable
    prompt_token_ids: list[int]
    salt: bytes = b""
    n: int = 1
    max_tokens: int = 0
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    sampling: object = None
    deadline: float | None = None


class Sequence:
    """One output of a request: its tokens, and its block table.

    Attributes:
        token_ids: prompt and output, as far as results have arrived.
        num_in_flight: tokens that steps under way will sample; the executor knows them, this process not yet.
        num_computed: tokens whose keys and values are written, or will be by the steps under way.
        table: the physical block of each logical block (section 4.3).
        identities: identity of each full block of `token_ids`, grown on demand.
        num_registered: leading blocks of the table that were offered to the prefix cache.
        last_step: last step with a row of this sequence; its blocks may be touched until that step's result is here.
        leader: after a resumption, the sibling whose prompt blocks this one shares, and which has to fill them first:
            up to `leader_tokens` tokens.
        resident: the executor knows it.
    """

    __slots__ = (
        "finished",
        "identities",
        "last_step",
        "leader",
        "leader_tokens",
        "num_computed",
        "num_in_flight",
        "num_registered",
        "prompt_length",
        "request",
        "resident",
        "sample_index",
        "sequence_id",
        "table",
        "token_ids",
    )

    def __init__(self, sequence_id: int, request: Request, sample_index: int) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.sample_index = sample_index
        self.prompt_length = len(request.spec.prompt_token_ids)
        self.token_ids = list(request.spec.prompt_token_ids)
        self.num_in_flight = 0
        self.num_computed = 0
        self.table: list[Block] = []
        self.identities: list[bytes] = []
        self.num_registered = 0
        self.last_step = 0
        self.leader: Sequence | None = None
        self.leader_tokens = 0
        self.resident = False
        self.finished = False

    @property
    def num_output(self) -> int:
        """Output tokens that have arrived."""
        return len(self.token_ids) - self.prompt_length

    @property
    def num_to_compute(self) -> int:
        """Tokens the next steps can compute: 1 for a decode, more for a prefill, 0 when there is nothing to do."""
        length = len(self.token_ids) + self.num_in_flight
        if self.finished or length >= self.request.max_length:
            return 0  # the last token is never fed back
        if self.leader is not None and self.leader.num_computed < self.leader_tokens:
            return 0
        return length - self.num_computed

    def reset(self) -> None:
        """Back to nothing computed, as after a preemption. The table must be empty already."""
        assert not self.table
        self.num_computed = self.num_registered = 0
        self.leader = None
        self.resident = False


@dataclass(eq=False, slots=True)
class Request:
    """A request while it lives. All its sequences are admitted, preempted and resumed together.

    Attributes:
        max_length: tokens of a whole sequence, prompt and output.
        forked: its n sequences exist. Before that only the first does, which prefills the prompt for all.
        num_cached_tokens: prompt tokens that came from the prefix cache at the first admission; None before it.
        num_losses: executors that were lost while it ran, since its last token.
        waiting_reason: why it was not admitted when last looked at.
    """

    spec: RequestSpec
    max_length: int
    sequences: list[Sequence] = field(default_factory=list)
    forked: bool = False
    num_cached_tokens: int | None = None
    num_losses: int = 0
    waiting_reason: str = ""

    def unfinished(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if not sequence.finished]

    @property
    def num_reserved_sequences(self) -> int:
        """Rows it can have at once: what it counts against the limit of running sequences."""
        return len(self.unfinished()) if self.forked else self.spec.n
