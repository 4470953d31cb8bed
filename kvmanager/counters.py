"""Counters since start, memory waste among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvmanager.memory import Memory
from kvmanager.prefix_use import PrefixUse
from kvmanager.request import Request, RequestState, Sequence
from kvmanager.tenant_counters import TenantCounters

WASTE_INTERVAL = 16
"""Every so many steps the use of memory is added up: looking at each sequence's last block would be a large part of a
step's cost."""


@dataclass(slots=True)
class Counters:
    """All of them only grow.

    Attributes:
        slot_steps: token slots in referenced blocks, added up over the steps looked at.
        unshared_slot_steps: token slots in all entries of block tables: what would be needed without sharing.
        reserved_slot_steps: referenced slots kept for tokens of the prompt that are not computed yet.
        internal_slot_steps: referenced slots that no token is meant for now: a sequence's last, partly filled block,
            and blocks that wait for a step under way before they are free.
        prefix_use: prompt tokens by tenant and scope.
        ended: by tenant, of its requests that have ended.
        host_cached_prompt_tokens: those of cached_prompt_tokens that came from the host tier.
        waiting_seconds, running_seconds, preempted_seconds: time in each state, added up over requests.

    The paper's figure 2 has external fragmentation as a third kind of waste; with blocks of one size there is none.
    """

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    host_cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    preemptions_by_swap: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    copied_blocks: int = 0
    peak_referenced_blocks: int = 0
    slot_steps: int = 0
    unshared_slot_steps: int = 0
    reserved_slot_steps: int = 0
    internal_slot_steps: int = 0
    waiting_seconds: float = 0.0
    running_seconds: float = 0.0
    preempted_seconds: float = 0.0
    prefix_use: PrefixUse = field(default_factory=PrefixUse)
    ended: dict[str, TenantCounters] = field(default_factory=dict)

    def note_admission(self, request: Request, num_cached: int, num_from_host: int, block_size: int) -> None:
        """Counts a prompt that is admitted for the first time."""
        self.prompt_tokens += len(request.spec.prompt_token_ids)
        self.cached_prompt_tokens += num_cached
        self.host_cached_prompt_tokens += num_from_host
        self.prefix_use.looked_up(request, num_cached, block_size)

    def note_found_later(self, request: Request, first_block: int, num_blocks: int, block_size: int) -> None:
        """Counts blocks of a prompt that others have computed since it was admitted."""
        self.cached_prompt_tokens += num_blocks * block_size
        self.prefix_use.found_later(request, first_block, num_blocks, block_size)

    def note_end(self, request: Request, completion_tokens: int) -> None:
        """Counts a request that is over."""
        tenant = request.spec.tenant
        if tenant not in self.ended:
            self.ended[tenant] = TenantCounters()
        self.ended[tenant].add(request, completion_tokens)

    def note_state(self, request: Request, state: RequestState | None, now: float) -> None:
        """Adds the time in the state that a request leaves; None: it is over."""
        seconds, times = now - request.state_since, request.times
        if request.state is RequestState.WAITING:
            self.waiting_seconds += seconds
            times.waiting += seconds
        elif request.state is RequestState.RUNNING:
            self.running_seconds += seconds
            times.running += seconds
        else:
            self.preempted_seconds += seconds
            times.preempted += seconds
        request.state_since = now
        if state is not None:
            request.state = state

    def note_memory(self, memory: Memory, sequences: Iterable[Sequence]) -> None:
        """Adds one step's use of memory."""
        num_referenced, block_size = memory.pool.num_referenced, memory.block_size
        self.slot_steps += num_referenced * block_size
        self.internal_slot_steps += memory.fence.charges().total() * block_size
        num_entries = len(memory.fence.blocks())
        shared: set[int] = set()  # siblings may share their last block: its empty slots count once
        for sequence in sequences:
            num_entries += len(sequence.table)
            last = sequence.table[-1]
            if last.reference_count > 1:
                if last.block_id in shared:
                    continue
                shared.add(last.block_id)
            num_computed = sequence.num_computed
            unfilled = len(sequence.table) * block_size - num_computed
            reserved = len(sequence.token_ids) - num_computed
            if reserved > 0:
                self.reserved_slot_steps += reserved
                unfilled -= reserved
            self.internal_slot_steps += unfilled
        self.unshared_slot_steps += num_entries * block_size
