"""Counters since start, memory waste among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvmanager.memory import Memory
from kvmanager.request import Sequence


@dataclass(slots=True)
class Counters:
    """All of them only grow, except the peak's meaning.

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
        num_referenced = memory.pool.num_referenced
        self.steps += 1
        self.peak_referenced_blocks = max(self.peak_referenced_blocks, num_referenced)
        self.slot_steps += num_referenced * memory.block_size
        self.internal_slot_steps += memory.num_retiring() * memory.block_size
        # Siblings may share their last block: its empty slots count once.
        unfilled = {}
        for sequence in sequences:
            if sequence.table:
                reserved = max(0, len(sequence.token_ids) - sequence.num_computed)
                slots = len(sequence.table) * memory.block_size - sequence.num_computed
                unfilled[sequence.table[-1].block_id] = (reserved, slots - reserved)
        for reserved, internal in unfilled.values():
            self.reserved_slot_steps += reserved
            self.internal_slot_steps += internal
