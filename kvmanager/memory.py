"""The memory of one executor: block tables over the pool, and the prefix cache over both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvmanager.block import Block
from kvmanager.block_pool import BlockPool
from kvmanager.capacity import Capacity
from kvmanager.prefix_cache import ROOT, PrefixCache, block_identity
from kvmanager.request import Request, Sequence


@dataclass(frozen=True, slots=True)
class Admission:
    """Where a request's blocks would come from. Nothing has been taken yet.

    Attributes:
        matched: for each unfinished sequence, the cached blocks it starts with.
        num_shared: leading blocks that siblings take over from the first sequence where the cache gives them fewer.
        num_needed: blocks that leave the pool's available ones: new ones, and matched ones that nobody references.
    """

    request: Request
    matched: list[list[Block]]
    num_shared: int
    num_needed: int


class Memory:
    """Gives sequences their blocks, shares them, copies them on write, and takes them back.

    Blocks that a step under way may still touch are *retired* when they are released: they keep their reference until
    that step's result has arrived (`release_retired`).
    """

    def __init__(self, capacity: Capacity, prefix_caching: bool = True) -> None:
        self.capacity = capacity
        self.block_size = capacity.block_size
        self.prefix_cache = PrefixCache()
        self.pool = BlockPool(capacity.num_blocks, self.prefix_cache.evict)
        self._prefix_caching = prefix_caching
        self._retired: dict[int, list[list[Block]]] = {}
        self.last_finished_step = 0

    # Admission

    def plan(self, request: Request) -> Admission:
        """Finds the cached beginning of each of the request's sequences, and counts the blocks it needs beside that."""
        sequences = request.unfinished()
        num_shared = len(request.spec.prompt_token_ids) // self.block_size
        matched = [self._match(sequence) for sequence in sequences]
        num_new = 0
        for index, (sequence, blocks) in enumerate(zip(sequences, matched, strict=True)):
            held = len(blocks) if index == 0 else max(len(blocks), num_shared)
            num_new += self.capacity.blocks_for(len(sequence.token_ids)) - held
        revived = {block.block_id for blocks in matched for block in blocks if block.reference_count == 0}
        return Admission(request, matched, num_shared, num_new + len(revived))

    def admit(self, admission: Admission) -> None:
        """Takes the blocks for all tokens that the request's sequences have so far.

        The caller has checked `num_needed` against `pool.num_available`.
        """
        sequences = admission.request.unfinished()
        for blocks in admission.matched:  # all of them first: allocating for one must not evict another's match
            for block in blocks:
                self.pool.retain(block)
        leader = sequences[0]
        for sequence, blocks in zip(sequences, admission.matched, strict=True):
            sequence.table = list(blocks)
            if sequence is not leader and len(blocks) < admission.num_shared:
                self._follow(sequence, leader, admission.num_shared)
            sequence.num_computed = len(sequence.table) * self.block_size
            sequence.num_registered = len(sequence.table)
            for _ in range(self.capacity.blocks_for(len(sequence.token_ids)) - len(sequence.table)):
                sequence.table.append(self.pool.allocate())

    def _follow(self, sequence: Sequence, leader: Sequence, num_blocks: int) -> None:
        for block in leader.table[len(sequence.table) : num_blocks]:
            self.pool.retain(block)
            sequence.table.append(block)
        sequence.leader, sequence.leader_tokens = leader, num_blocks * self.block_size

    def _match(self, sequence: Sequence) -> list[Block]:
        if not self._prefix_caching:
            return []
        # Even where everything is cached the last token is computed again: its logits choose the next one.
        num_blocks = (len(sequence.token_ids) - 1) // self.block_size
        self._identify(sequence, num_blocks)
        return self.prefix_cache.match(sequence.identities[:num_blocks], sequence.token_ids, self.block_size)

    # Writing

    def blocks_to_write(self, sequences: Iterable[Sequence]) -> int:
        """Blocks to allocate before each of these can write its next token: at block borders, and for copies."""
        num_new = 0
        shared: list[Block] = []
        for sequence in sequences:
            index = sequence.num_computed // self.block_size
            if index == len(sequence.table):
                num_new += 1
            elif sequence.table[index].reference_count > 1:
                shared.append(sequence.table[index])
        if not shared:
            return num_new
        # The last holder of a shared block writes in place.
        return num_new + sum(min(count, block.reference_count - 1) for block, count in Counter(shared).items())

    def prepare_write(self, sequence: Sequence) -> tuple[int, Block | None] | None:
        """Makes the block of the sequence's next token its own (copy-on-write, section 4.4).

        Returns:
            None when the table stays as it is; otherwise the logical index that changed, and the block to copy from
            when it is a copy rather than a new block.
        """
        index = sequence.num_computed // self.block_size
        if index == len(sequence.table):
            sequence.table.append(self.pool.allocate())
            return index, None
        shared = sequence.table[index]
        if shared.reference_count == 1:
            return None
        sequence.table[index] = self.pool.allocate()
        self.pool.release([shared])
        return index, shared

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives the child the parent's table: every block shared, the partly filled one included."""
        for block in parent.table:
            self.pool.retain(block)
        child.table = list(parent.table)
        child.identities = list(parent.identities)
        child.num_computed = parent.num_computed
        child.num_registered = parent.num_registered

    def register_full_blocks(self, sequence: Sequence) -> None:
        """Offers the sequence's blocks to the prefix cache as soon as all their tokens are known and under way.

        The step that fills a block need not have finished: the executor works in order, and within a step all rows
        write before any attends, so whoever finds the block in the cache reads it after it was written.
        """
        num_full = min(sequence.num_computed, len(sequence.token_ids)) // self.block_size
        if num_full <= sequence.num_registered or not self._prefix_caching:
            return
        self._identify(sequence, num_full)
        for index in range(sequence.num_registered, num_full):
            first = index * self.block_size
            block_tokens = sequence.token_ids[first : first + self.block_size]
            if sequence.table[index].identity is None:
                self.prefix_cache.register(sequence.table[index], sequence.identities[index], block_tokens)
        sequence.num_registered = num_full

    def _identify(self, sequence: Sequence, num_blocks: int) -> None:
        identities = sequence.identities
        for index in range(len(identities), num_blocks):
            first = index * self.block_size
            tokens = sequence.token_ids[first : first + self.block_size]
            identities.append(block_identity(identities[-1] if index else ROOT, tokens, sequence.request.spec.salt))

    # Releasing

    def release(self, sequence: Sequence) -> None:
        """Takes the sequence's blocks back, at once or when its last step has finished."""
        table, sequence.table = sequence.table, []
        if sequence.last_step <= self.last_finished_step:
            self.pool.release(table)
        elif table:
            self._retired.setdefault(sequence.last_step, []).append(table)

    def release_retired(self, finished_step: int) -> None:
        """Releases what waited for this step's result."""
        self.last_finished_step = finished_step
        for step in [step for step in self._retired if step <= finished_step]:
            for table in self._retired.pop(step):
                self.pool.release(table)

    def num_retiring(self) -> int:
        """Blocks that become available once the steps under way have finished, whatever else happens."""
        if not self._retired:
            return 0
        retired = Counter(self._retired_blocks())
        return sum(block.reference_count == count for block, count in retired.items())

    def _retired_blocks(self) -> list[Block]:
        return [block for tables in self._retired.values() for table in tables for block in table]

    # Accounting

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Asserts that no block is lost, free twice, or counted wrongly, given every live sequence."""
        references = Counter(self._retired_blocks())
        for sequence in sequences:
            references.update(sequence.table)
            assert len(sequence.table) >= self.capacity.blocks_for(sequence.num_computed)
            for block, identity in zip(sequence.table[: sequence.num_registered], sequence.identities, strict=False):
                assert block.identity in (None, identity), f"{block} is cached under another identity"
        for block in self.pool.blocks:
            assert block.reference_count == references[block], f"{block} is referenced {references[block]} times"
        pool = self.pool
        assert pool.num_free + pool.num_cached + pool.num_referenced == pool.num_blocks
        pool.check_integrity()
        self.prefix_cache.check_integrity(pool.blocks)
