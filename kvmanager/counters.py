"""Counters since start, memory waste among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvmanager.memory import Memory
from kvmanager.request import Sequence


@dataclass(slots=True)
class Counters:
    """All of them only grow.

    Attributes:
        slot_steps: token slots in referenced blocks, added up over all steps.
        reserved_slot_steps: those of them kept for tokens of the prompt that are not computed yet.
        internal_slot_steps: those of them that no token is meant for now: a sequence's last, partly filled block, and
            blocks that wait for a step under way before they are free.

    The paper's figure 2 has external fragmentation as a third kind of waste; with blocks of one size there is none.
    """

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    copied_blocks: int = 0
    peak_referenced_blocks: int = 0
    slot_steps: int = 0
    reserved_slot_steps: int = 0
    internal_slot_steps: int = 0

    def note_step(self, memory: Memory, sequences: Iterable[Sequence]) -> None:
        """Adds one step's use of memory."""
        num_referenced, block_size = memory.pool.num_referenced, memory.block_size
        self.steps += 1
        self.peak_referenced_blocks = max(self.peak_referenced_blocks, num_referenced)
        self.slot_steps += num_referenced * block_size
        self.internal_slot_steps += memory.num_retiring() * block_size
        shared: set[int] = set()  # siblings may share their last block: its empty slots count once
        for sequence in sequences:
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
