"""A request and its sequences, as the KV manager sees them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kvmanager.block import Block
from kvmanager.content import Content, ScopeMap
from kvmanager.request_times import RequestTimes
from kvmanager.spec import RequestSpec

if TYPE_CHECKING:
    from kvmanager.beam_search import BeamSearch


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"


class PrefixMatchEnd(Enum):
    """Why no more of a prompt came from the prefix cache.

    NEVER_SEEN: the next block's tokens were never cached, or long ago.
    EVICTED: it was cached until other content took its place.
    OTHER_SCOPE: it is cached, by the same owner under another scope.
    PARTIAL_BLOCK: the rest of the prompt does not fill a block.
    LAST_TOKEN: all is cached; the last token is always computed, for its logits choose the next one.
    """

    NEVER_SEEN = "never seen"
    EVICTED = "evicted"
    OTHER_SCOPE = "other scope"
    PARTIAL_BLOCK = "partial block"
    LAST_TOKEN = "last token"


class RequestState(Enum):
    """Where a request is. A waiting one has never run; a preempted one has given its blocks back."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"


class Sequence:
    """One output of a request: its tokens, and its block table.

    Attributes:
        token_ids: prompt and output, as far as results have arrived; packed, so that a block's are one piece of memory.
        num_computed: tokens whose keys and values are written, or will be by the steps under way. The executor may
            know tokens that have not arrived here: when this reaches the length of `token_ids`, one is under way.
        table: the physical block of each logical block (section 4.3).
        host_table: while it is swapped out, where each block is in the host tier.
        contents: of each full block of `token_ids`, grown on demand.
        num_registered: leading blocks of the table that were offered to the prefix cache.
        duplicates: logical indices whose content another block already gave out when this one was offered.
        last_step: last step with a row of this sequence; its blocks may be touched until that step's result is here.
        due_step: the next step at which it needs more than a row while it decodes.
        next_check: the length of `token_ids` at which the next block is full, or the sequence over; 0 where each token
            has to be looked at.
        leader: after a resumption, the sibling whose prompt blocks this one shares, and which has to fill them first:
            up to `leader_tokens` tokens.
        score: sum of its output tokens' log probabilities, where sequences are ranked.
        candidates: a beam's most likely next tokens and their log probabilities, once they have arrived.
        resident: the executor knows it.
    """

    __slots__ = (
        "candidates",
        "contents",
        "due_step",
        "duplicates",
        "finish_reason",
        "finished",
        "handle",
        "host_table",
        "last_step",
        "leader",
        "leader_tokens",
        "next_check",
        "num_computed",
        "num_registered",
        "prompt_length",
        "request",
        "resident",
        "sample_index",
        "score",
        "sequence_id",
        "stop_token_ids",
        "table",
        "token_ids",
    )

    def __init__(self, sequence_id: int, request: Request, sample_index: int, token_ids: array[int]) -> None:
        spec = request.spec
        self.sequence_id = sequence_id
        self.request = request
        self.handle = spec.handle
        self.sample_index = sample_index
        self.prompt_length = len(spec.prompt_token_ids)
        self.token_ids = token_ids
        self.stop_token_ids = spec.stop_token_ids
        self.num_computed = 0
        self.table: list[Block] = []
        self.host_table: list[Block] = []
        self.contents: list[Content] = []
        self.num_registered = 0
        self.duplicates: list[int] = []
        self.last_step = 0
        self.due_step = 0
        self.next_check = 0
        self.leader: Sequence | None = None
        self.leader_tokens = 0
        self.score = 0.0
        self.candidates: tuple[list[int], list[float]] | None = None
        self.resident = False
        self.finished = False
        self.finish_reason: FinishReason | None = None

    @property
    def num_output(self) -> int:
        """Output tokens that have arrived."""
        return len(self.token_ids) - self.prompt_length

    @property
    def follows(self) -> bool:
        """The leader has not filled the shared blocks yet."""
        return self.leader is not None and self.leader.num_computed < self.leader_tokens

    @property
    def num_to_prefill(self) -> int:
        """Tokens known here that are still to be computed; 0 while the leader has to go first."""
        return 0 if self.follows else max(0, len(self.token_ids) - self.num_computed)

    @property
    def num_rows_left(self) -> int:
        """Decodes until the sequence is as long as it may get: its last token is never fed back."""
        return self.request.max_length - 1 - self.num_computed

    def reset(self) -> None:
        """Back to nothing computed, as after a preemption. The tables must be empty already."""
        assert not self.table
        assert not self.host_table
        self.num_computed = self.num_registered = 0
        self.leader = None
        self.candidates = None
        self.duplicates.clear()
        self.resident = False


@dataclass(eq=False, slots=True)
class Request:
    """A request while it lives. All its sequences are admitted, preempted and resumed together.

    Attributes:
        arrival: number in order of arrival.
        arrived: time of arrival.
        scopes: of each logical block of its sequences.
        max_length: tokens of a whole sequence, prompt and output.
        beams: the search that its sequences are the live beams of.
        forked: its sequences exist. Before that only the first does, which prefills the prompt for all.
        num_rows: sequences that it may run at once, which count against the limit of running ones.
        num_uncached: tokens to compute for it, as far as was known when an executor was chosen.
        num_cached_tokens: prompt tokens that came from the prefix cache at the first admission; None before it.
        restarted: its prompt is computed again, so what is found of it now is no hit of the first time.
        num_losses: executors that were lost while it ran, since its last token.
        waiting_reason: why it was not admitted when last looked at, `num_missing` how many blocks or sequences were
            missing, and `available_then` the blocks there were.
        times: where its time went, up to `state_since`.
        streamed: tokens are sent as they come.
        branches, choices: what the executor has to hear before the beams go on: (parent, child) and (beam, token).
    """

    spec: RequestSpec
    arrival: int
    arrived: float
    scopes: ScopeMap
    max_length: int
    beams: BeamSearch | None = None
    sequences: list[Sequence] = field(default_factory=list)
    forked: bool = False
    num_rows: int = 0
    num_uncached: int = 0
    num_cached_tokens: int | None = None
    prefix_match_end: PrefixMatchEnd | None = None
    restarted: bool = False
    num_losses: int = 0
    waiting_reason: str = ""
    num_missing: int = 0
    available_then: int = 0
    state: RequestState = RequestState.WAITING
    state_since: float = 0.0
    times: RequestTimes = field(default_factory=RequestTimes)
    streamed: bool = field(init=False)
    branches: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    choices: list[tuple[Sequence, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streamed = self.spec.beam is None and not self.ranked and self.spec.pin is None

    @property
    def owner(self) -> str:
        """Whom the blocks of its answer are charged to."""
        return self.scopes.last.owner

    @property
    def ranked(self) -> bool:
        """Several sequences are sampled, and only the best returned."""
        return self.spec.beam is None and self.spec.best_of > self.spec.n

    @property
    def most_rows(self) -> int:
        """Rows that it can have in one step."""
        if self.forked and self.beams is None:
            return len(self.unfinished())
        return self.spec.num_sequences

    def note_first_token(self, now: float) -> None:
        """A token has arrived; only the first one counts."""
        if self.times.prefill is None:
            since = now - self.state_since if self.state is RequestState.RUNNING else 0.0
            self.times.prefill = self.times.running + since

    def cut(self, block_size: int) -> None:
        """Cuts its sequences into blocks of another size. They must not have any yet."""
        self.scopes = ScopeMap(self.spec.spans, block_size)
        for sequence in self.sequences:
            assert not sequence.table
            sequence.contents.clear()

    def unfinished(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if not sequence.finished]
