"""The memory of one executor: block tables over the device tier, and the host tier behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from kvmanager.accounts import Account, Charges, Quota
from kvmanager.block import Block
from kvmanager.capacity import Capacity
from kvmanager.content import Identify, block_identity
from kvmanager.copies import PendingCopies
from kvmanager.cost_model import CostModel
from kvmanager.errors import InvalidRequest
from kvmanager.fence import Fence
from kvmanager.kv_events import KVEventLog, Tier
from kvmanager.lookup import PartialMatch, PrefixLookup
from kvmanager.prefix_cache import PrefixCache
from kvmanager.request import PrefixMatchEnd, Request, RequestState, Sequence
from kvmanager.swapper import Swapper
from kvmanager.tier import MemoryTier
from kvmanager.untold import UntoldContents


@dataclass(frozen=True, slots=True)
class Admission:
    """Where a request's blocks would come from. Nothing has been taken yet.

    Attributes:
        sources: for each unfinished sequence, the blocks of either tier that it starts with.
        partial: a block of which the first sequence copies the beginning.
        num_shared: leading blocks that siblings take over from the first sequence where the cache gives them fewer.
        charges: blocks that leave the device pool's available ones: new ones, and sources that nobody references.
        match_end: why there are no more sources; None where that was not asked.
    """

    request: Request
    sources: list[list[Block]]
    partial: PartialMatch | None
    num_shared: int
    charges: Charges
    match_end: PrefixMatchEnd | None


class Memory:
    """Gives sequences their blocks, shares them, copies them on write, moves them to the host tier and back.

    Args:
        executor: its name in events.
        quotas: by owner.
        identify: how a block's identity is made; tests make collisions with it.
    """

    def __init__(
        self,
        executor: str,
        capacity: Capacity,
        costs: CostModel,
        quotas: Mapping[str, Quota],
        log: KVEventLog,
        prefix_caching: bool = True,
        identify: Identify = block_identity,
    ) -> None:
        self.executor = executor
        self.capacity = capacity
        self.block_size = capacity.block_size
        self.costs = costs
        self.untold = UntoldContents()
        self.host = MemoryTier(executor, Tier.HOST, capacity.num_host_blocks, {}, log, self.untold)
        self.device = MemoryTier(executor, Tier.DEVICE, capacity.num_blocks, quotas, log, self.untold)
        self.pool = self.device.pool
        self.fence = Fence(self.pool)
        self.copies = PendingCopies(self.pool, self.host.pool)
        self._swapper = Swapper(self.device, self.host, self.copies, costs)
        self.device.before_evict = self._swapper.keep_evicted
        self.lookup = PrefixLookup(self.device, self.host, capacity.block_size, costs, identify)
        self.prefix_caching = prefix_caching
        self._pinned: list[list[Block]] = []

    @property
    def caches(self) -> tuple[PrefixCache, PrefixCache]:
        """Of the device tier and of the host tier."""
        return self.device.cache, self.host.cache

    # Admission

    def room_for(self, request: Request) -> int:
        """How many tokens each of the request's sequences may reach here, whatever others do.

        Raises:
            InvalidRequest: it can never run here.
        """
        for owner, count in self._prompt_blocks_of_others(request).items():
            limit = self.pool.accounts.limit(owner)
            if limit is not None and count > limit:
                raise InvalidRequest("prompt", f"prompt has {count} blocks of {owner}, which can have {limit}")
        return self.capacity.resolve_max_length(request.spec, self.guaranteed(request))

    def guaranteed(self, request: Request) -> int:
        """Blocks that the request can have whatever others do."""
        return self.pool.accounts.guaranteed(request.owner, self._prompt_blocks_of_others(request))

    def _prompt_blocks_of_others(self, request: Request) -> Counter[str]:
        """Blocks with tokens of the prompt that are charged to somebody else than the answer's are, at most."""
        spec = request.spec
        num_full, rest = divmod(len(spec.prompt_token_ids), self.block_size)
        owners = request.scopes.owners(0, num_full)
        if rest:
            owners[request.scopes[num_full].owner] += spec.num_sequences  # each gets a copy of its own
        owners.pop(request.owner, None)
        return owners

    def plan(self, request: Request) -> Admission:
        """Finds what each of the request's sequences can start with, and counts the blocks it needs beside that."""
        sequences = request.unfinished()
        swapped = request.state is RequestState.SWAPPED
        if swapped:
            sources = [[self._swapper.where(block) for block in sequence.host_table] for sequence in sequences]
        elif self.prefix_caching:
            sources = [self.lookup.match(sequence) for sequence in sequences]
        else:
            sources = [[] for _ in sequences]
        num_shared = 0 if swapped else len(request.spec.prompt_token_ids) // self.block_size
        partial = match_end = None
        if self.prefix_caching and not swapped:
            partial = self.lookup.partial(sequences[0], len(sources[0]), self.copies.step)
        charges = self._count_charges(request, sequences, sources, num_shared)
        if swapped:
            charges += self._blocks_to_part(sequences, sources)
        if partial is not None and not self._can_hold(partial.block, charges):
            partial = None
        if self.prefix_caching and request.num_cached_tokens is None:
            match_end = self._match_end(sequences[0], sources[0], partial)
        return Admission(request, sources, partial, num_shared, charges, match_end)

    def _can_hold(self, block: Block, charges: Charges) -> bool:
        """Counts a block that is held while it is copied from. It must not be what a request waits for."""
        if block.reference_count or block.account is None:
            return True
        charges[block.account] += 1
        if not self.shortage(charges):
            return True
        charges[block.account] -= 1
        return False

    def _match_end(self, sequence: Sequence, sources: list[Block], partial: PartialMatch | None) -> PrefixMatchEnd:
        computed = len(sources) * self.block_size + (partial.num_tokens if partial else 0)
        if computed == len(sequence.token_ids) - 1:
            return PrefixMatchEnd.LAST_TOKEN
        return self.lookup.match_end(sequence, len(sources))

    def _count_charges(
        self, request: Request, sequences: list[Sequence], sources: list[list[Block]], num_shared: int
    ) -> Charges:
        charges: Charges = Counter()
        accounts, scopes = self.pool.accounts, request.scopes
        taken: dict[Block, Account | None] = {}  # siblings share what they take
        for order, (sequence, blocks) in enumerate(zip(sequences, sources, strict=True)):
            for index, block in enumerate(blocks):
                if block.on_host:
                    taken[block] = accounts[scopes[index].owner]
                elif not block.reference_count:
                    taken[block] = block.account
            first = len(blocks) if order == 0 else max(len(blocks), num_shared)
            for owner, count in scopes.owners(first, self.capacity.blocks_for(len(sequence.token_ids))).items():
                charges[accounts[owner]] += count
        charges.update(account for account in taken.values() if account is not None)
        return charges

    def _blocks_to_part(self, sequences: list[Sequence], sources: list[list[Block]]) -> Charges:
        """Copies that siblings need for their next tokens where they share a partly filled block.

        Without them a group that is fetched would have to be moved out again before it gets any further.
        """
        charges: Charges = Counter()
        written: set[Block] = set()
        for sequence, blocks in zip(sequences, sources, strict=True):
            index = sequence.num_computed // self.block_size
            if index < len(blocks):
                if blocks[index] in written:
                    charges[self.pool.accounts[sequence.request.scopes[index].owner]] += 1
                written.add(blocks[index])
        return charges

    def shortage(self, charges: Charges, *, spare: int = 0, after_retirement: bool = False) -> str:
        """What stands in the way of these charges: "blocks", "tenant_limit", or nothing.

        Args:
            spare: blocks that must be left over.
            after_retirement: count what becomes available once the steps under way have finished.
        """
        retiring = self.fence.charges() if after_retirement else Counter[Account]()
        for account, count in charges.items():
            room = account.room
            if room is not None and count > room + retiring[account]:
                return "tenant_limit"
        left = self.pool.num_available + retiring.total() - charges.total() - spare
        return "blocks" if left < self.pool.accounts.kept_for_owners(charges) else ""

    def missing(self, charges: Charges, *, spare: int = 0) -> int:
        """How many blocks stand in the way of these charges, where `shortage` says that some do."""
        rooms = ((account.room, count) for account, count in charges.items())
        above_limit = max((count - room for room, count in rooms if room is not None), default=0)
        if above_limit > 0:
            return above_limit
        return charges.total() + spare + self.pool.accounts.kept_for_owners(charges) - self.pool.num_available

    def admit(self, admission: Admission) -> None:
        """Takes the blocks for all tokens that the request's sequences have so far.

        The caller has checked `shortage(admission.charges)`.
        """
        request, sequences = admission.request, admission.request.unfinished()
        is_hit = request.state is not RequestState.SWAPPED
        for blocks in admission.sources:  # all of them first: allocating for one must not evict another's
            for block in blocks:
                (self.host.pool if block.on_host else self.pool).retain(block)
                block.hits += is_hit
        if admission.partial is not None:
            self.pool.retain(admission.partial.block)
            self.copies.hold(admission.partial.block)
        fetched: dict[Block, Block] = {}
        leader = sequences[0]
        for sequence, sources in zip(sequences, admission.sources, strict=True):
            sequence.table = [self._fetch(block, request, index, fetched) for index, block in enumerate(sources)]
            if request.state is RequestState.SWAPPED:
                for block in sequence.host_table:
                    self.copies.hold(block)
                sequence.host_table = []
            else:
                if sequence is not leader and len(sources) < admission.num_shared:
                    self._follow(sequence, leader, admission.num_shared)
                sequence.num_computed = len(sequence.table) * self.block_size
                sequence.num_registered = len(sequence.table)
            for index in range(len(sequence.table), self.capacity.blocks_for(len(sequence.token_ids))):
                sequence.table.append(self._allocate(request, index))
        if admission.partial is not None:
            self.copies.copy(admission.partial.block, leader.table[len(admission.sources[0])])
            leader.num_computed += admission.partial.num_tokens

    def tokens_from_host(self, admission: Admission) -> int:
        """Tokens that the first sequence was given from the host tier."""
        return sum(block.on_host for block in admission.sources[0]) * self.block_size

    def _allocate(self, request: Request, index: int) -> Block:
        return self.pool.allocate(self.pool.accounts[request.scopes[index].owner])

    def _fetch(self, block: Block, request: Request, index: int, fetched: dict[Block, Block]) -> Block:
        """The device block for a source: itself, or one that it is copied to from the host tier."""
        if not block.on_host:
            return block
        self.copies.hold(block)
        copy = fetched.get(block)
        if copy is not None:
            self.pool.retain(copy)
            return copy
        copy = fetched[block] = self._allocate(request, index)
        self._swapper.move_in(block, copy)
        return copy

    def _follow(self, sequence: Sequence, leader: Sequence, num_blocks: int) -> None:
        for block in leader.table[len(sequence.table) : num_blocks]:
            self.pool.retain(block)
            sequence.table.append(block)
        sequence.leader, sequence.leader_tokens = leader, num_blocks * self.block_size

    # Sharing what others compute at the same time

    def take_over(self, sequence: Sequence) -> int:
        """Replaces the blocks that a prefill would fill next by those that somebody else fills already.

        Returns how many. The executor has to hear of the sequence anew: it is further than it knows.
        """
        num_blocks = 0
        while self.prefix_caching and (block := self.lookup.next_block(sequence)) is not None:
            index = sequence.num_computed // self.block_size
            own = sequence.table[index]
            if own is block or own.reference_count > 1:
                break  # siblings wait for this one to be filled
            self.pool.retain(block)
            block.hits += 1
            sequence.table[index] = block
            self.pool.release([own])  # no step has touched it
            sequence.num_computed += self.block_size
            sequence.num_registered = index + 1
            num_blocks += 1
        return num_blocks

    def merge_duplicates(self, sequence: Sequence) -> list[tuple[int, Block]]:
        """Replaces blocks of a sequence whose content another block gave out first.

        Not by blocks that nobody references, which would cost a block for a while and save none; and not where
        siblings share the sequence's own block: they would part, and together need more than they were admitted for.

        Returns:
            The logical indices that changed, and their blocks.
        """
        changes: list[tuple[int, Block]] = []
        duplicates = sequence.duplicates[:]
        sequence.duplicates.clear()
        for index in duplicates:
            content, own = sequence.contents[index], sequence.table[index]
            block = self.device.cache.get(content)
            if block is None:
                if own.content is None:
                    self.device.register(own, content, sequence.last_step)
            elif block is not own and block.reference_count and own.reference_count == 1:
                self.pool.retain(block)
                sequence.table[index] = block
                self.fence.retire([own], sequence.last_step)
                changes.append((index, block))
        return changes

    # Writing

    def has_plenty(self, num_sequences: int) -> bool:
        """Each of so many sequences can have a block, whoever they are: no need to count."""
        return self.pool.num_available >= num_sequences and self.pool.accounts.unrestricted

    def blocks_to_write(self, sequences: Iterable[Sequence]) -> Charges:
        """Blocks to allocate before each of these can write its next token: at block borders, and for copies."""
        charges: Charges = Counter()
        shared: Counter[Block] = Counter()
        accounts = self.pool.accounts
        for sequence in sequences:
            index = sequence.num_computed // self.block_size
            if index == len(sequence.table):
                charges[accounts[sequence.request.scopes[index].owner]] += 1
            elif sequence.table[index].reference_count > 1:
                block = sequence.table[index]
                shared[block] += 1
                if shared[block] < block.reference_count:  # the last holder of a shared block writes in place
                    charges[accounts[sequence.request.scopes[index].owner]] += 1
        return charges

    def prepare_write(self, sequence: Sequence) -> tuple[int, Block] | None:
        """Makes the block of the sequence's next token its own (copy-on-write, section 4.4).

        Returns:
            None when the table stays as it is; otherwise the logical index that changed, and its block.
        """
        index = sequence.num_computed // self.block_size
        if index == len(sequence.table):
            block = self._allocate(sequence.request, index)
            sequence.table.append(block)
            return index, block
        shared = sequence.table[index]
        if shared.reference_count == 1:
            return None
        block = sequence.table[index] = self._allocate(sequence.request, index)
        self.pool.release([shared])
        self.copies.copy(shared, block)
        return index, block

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives the child the parent's table: every block shared, the partly filled one included."""
        for block in parent.table:
            self.pool.retain(block)
        child.table = list(parent.table)
        child.contents = list(parent.contents)
        child.num_computed = parent.num_computed
        child.num_registered = parent.num_registered

    def register_full_blocks(self, sequence: Sequence) -> None:
        """Offers the sequence's blocks to the prefix cache as soon as all their tokens are known and under way.

        The step that fills a block need not have finished: the executor works in order, and within a step all rows
        write before any attends, so whoever finds the block in the cache reads it after it was written.
        """
        num_full = min(sequence.num_computed, len(sequence.token_ids)) // self.block_size
        first, contents, table = sequence.num_registered, sequence.contents, sequence.table
        if num_full <= first or not self.prefix_caching:
            return
        if len(contents) < num_full:
            self.lookup.extend_contents(sequence, num_full)
        register, last_step = self.device.cache.register, sequence.last_step
        for index in range(first, num_full):
            block = table[index]
            if block.content is None and not register(block, contents[index], last_step):
                sequence.duplicates.append(index)
        sequence.num_registered = num_full

    # The host tier

    def can_swap_out(self, request: Request) -> bool:
        """Whether the host tier has room for the request's blocks, and moving them is the cheaper way."""
        sequences = request.unfinished()
        if any(sequence.follows for sequence in sequences):
            return False  # blocks that the leader has not filled yet would be moved
        blocks = {block for sequence in sequences for block in self._computed_blocks(sequence)}
        if not blocks or not self._swapper.has_room(blocks):
            return False
        return self.costs.prefers_swap(len(blocks), self._tokens_in(sequences))

    def _computed_blocks(self, sequence: Sequence) -> list[Block]:
        return sequence.table[: self.capacity.blocks_for(sequence.num_computed)]

    def _tokens_in(self, sequences: list[Sequence]) -> int:
        """Tokens to compute again without a swap; siblings share the prompt's full blocks."""
        shared = len(sequences[0].request.spec.prompt_token_ids) // self.block_size * self.block_size
        return shared + sum(max(0, sequence.num_computed - shared) for sequence in sequences)

    def swap_out(self, sequence: Sequence, moved: dict[Block, Block]) -> None:
        """Moves a sequence's computed blocks to the host tier; whoever shares them on the device keeps them.

        Args:
            moved: device block -> host block of the siblings before, which share their copies too.
        """
        sequence.host_table = self._swapper.move_out(self._computed_blocks(sequence), moved)
        self._release_table(sequence)

    # Releasing

    def release(self, sequence: Sequence) -> None:
        """Takes the sequence's blocks back, at once or when its last step has finished."""
        self._release_table(sequence)
        if sequence.host_table:
            self.host.pool.release(sequence.host_table)
            sequence.host_table = []

    def next_check(self, sequence: Sequence) -> int:
        """The number of tokens at which the sequence's next block is full, or it is over."""
        longest = sequence.request.max_length
        if not self.prefix_caching:
            return longest
        full, length = (sequence.num_registered + 1) * self.block_size, len(sequence.token_ids)
        if full <= length:
            full = length + 1
        return full if full < longest else longest

    def _release_table(self, sequence: Sequence) -> None:
        table, sequence.table = sequence.table, []
        sequence.duplicates.clear()
        self.fence.retire(table, sequence.last_step)

    # Pins

    def pin(self, sequence: Sequence, num_blocks: int) -> list[Block]:
        """Keeps the sequence's first blocks until `unpin`."""
        blocks = sequence.table[:num_blocks]
        for block in blocks:
            self.pool.retain(block)
        self._pinned.append(blocks)
        return blocks

    def unpin(self, blocks: list[Block]) -> None:
        """Lets go of what `pin` returned."""
        self._pinned = [pinned for pinned in self._pinned if pinned is not blocks]
        self.pool.release(blocks)

    # Accounting

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Asserts that no block is lost, free twice, or counted wrongly, given every sequence with blocks."""
        assert self.copies.empty
        device = Counter(self.fence.blocks())
        device.update(self.copies.held_on_device)
        host = Counter(self.copies.held_on_host)
        for blocks in self._pinned:
            device.update(blocks)
        for sequence in sequences:
            device.update(sequence.table)
            host.update(sequence.host_table)
            assert not (sequence.table and sequence.host_table)
            held = sequence.table or sequence.host_table
            for index, content in enumerate(sequence.contents):
                first = index * self.block_size
                assert content.tokens == sequence.token_ids[first : first + self.block_size].tobytes()
            assert len(held) >= self.capacity.blocks_for(sequence.num_computed)
            for block, content in zip(held[: sequence.num_registered], sequence.contents, strict=False):
                assert block.content is None or block.content.identity == content.identity, f"{block} is another's"
        for tier, references in ((self.device, device), (self.host, host)):
            for block in tier.pool.blocks:
                assert block.reference_count == references[block], f"{block} is referenced {references[block]} times"
            tier.check_integrity()
