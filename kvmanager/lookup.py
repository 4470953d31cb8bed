"""How much of a sequence is in memory already: full blocks, a part of one more, and why it ends there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvmanager.block import Block
from kvmanager.content import ROOT, Content, Identify
from kvmanager.cost_model import CostModel
from kvmanager.request import PrefixMatchEnd, Sequence
from kvmanager.tier import MemoryTier


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """A block whose first tokens are those that come next."""

    block: Block
    num_tokens: int


class PrefixLookup:
    """Looks sequences up in both tiers. Takes no reference."""

    def __init__(
        self, device: MemoryTier, host: MemoryTier, block_size: int, costs: CostModel, identify: Identify
    ) -> None:
        self._device = device
        self._host = host
        self._block_size = block_size
        self._costs = costs
        self._identify = identify

    def contents(self, sequence: Sequence, num_blocks: int) -> list[Content]:
        """What the sequence's first blocks hold once they are full."""
        if len(sequence.contents) < num_blocks:
            self.extend_contents(sequence, num_blocks)
        contents = sequence.contents
        return contents if len(contents) == num_blocks else contents[:num_blocks]

    def extend_contents(self, sequence: Sequence, num_blocks: int) -> None:
        """Names the sequence's blocks up to this many, all of whose tokens are known."""
        contents, identify, scopes = sequence.contents, self._identify, sequence.request.scopes
        token_ids, block_size, first = sequence.token_ids, self._block_size, len(contents)
        parent, likeness = (contents[-1].identity, contents[-1].likeness) if first else (ROOT, 0)
        for index in range(first, num_blocks):
            tokens = token_ids[index * block_size : (index + 1) * block_size].tobytes()
            scope = scopes[index]
            identity = identify(parent, tokens, scope.salt)
            likeness = hash((likeness, tokens))  # `likeness_after`, without a call for each block
            contents.append(Content(identity, parent, tokens, scope, likeness))
            parent = identity

    def contents_before_last_token(self, sequence: Sequence) -> list[Content]:
        """Of all blocks that the sequence could be given, known tokens only."""
        return self.contents(sequence, (len(sequence.token_ids) - 1) // self._block_size)

    def match(self, sequence: Sequence) -> list[Block]:
        """The longest chain of blocks, of either tier, that the sequence can start with.

        Even where everything is there the last token is left out: its logits choose the next one.
        """
        contents = self.contents_before_last_token(sequence)
        matched = self._device.cache.match(contents)
        if not len(self._host.cache) or not self._costs.fetches_from_host:
            return matched
        for content in contents[len(matched) :]:
            block = self._device.cache.get(content) or self._host.cache.get(content)
            if block is None:
                break
            matched.append(block)
        return matched

    def next_block(self, sequence: Sequence) -> Block | None:
        """The device block that holds what the sequence would compute next, if there is one."""
        index, rest = divmod(sequence.num_computed, self._block_size)
        if rest or index >= (len(sequence.token_ids) - 1) // self._block_size:
            return None
        return self._device.cache.get(self.contents(sequence, index + 1)[index])

    def partial(self, sequence: Sequence, num_matched: int, step: int) -> PartialMatch | None:
        """A block that starts as the sequence goes on after its matched blocks, where copying it pays.

        Only blocks that no step from `step` on writes: a step copies before it writes.
        """
        first = num_matched * self._block_size
        limit = min(self._block_size, len(sequence.token_ids) - 1 - first)
        if limit <= 0:
            return None
        parent, likeness = _end_of(self.contents(sequence, num_matched))
        wanted = sequence.token_ids[first : first + limit]
        best: PartialMatch | None = None
        for block in self._device.cache.siblings(parent, sequence.request.scopes[num_matched].salt, step):
            content = block.content
            assert content is not None
            length = _common_length(wanted, memoryview(content.tokens).cast("i"))
            if length > (best.num_tokens if best else 0) and content.follows(likeness):
                best = PartialMatch(block, length)
        return best if best and self._costs.copies_part(best.num_tokens) else None

    def match_end(self, sequence: Sequence, num_matched: int) -> PrefixMatchEnd:
        """Why the match is no longer than so many blocks."""
        length = len(sequence.token_ids)
        if (num_matched + 1) * self._block_size > length:
            return PrefixMatchEnd.PARTIAL_BLOCK
        content = self.contents(sequence, num_matched + 1)[num_matched]
        on_host = self._host.cache.get(content) is not None
        if self._device.cache.get(content) or (on_host and self._costs.fetches_from_host):
            return PrefixMatchEnd.LAST_TOKEN  # or the match would have gone on
        if on_host or self._device.cache.was_evicted(content) or self._host.cache.was_evicted(content):
            return PrefixMatchEnd.EVICTED
        if self._has_likeness(sequence.request.spec.tenant, content):
            return PrefixMatchEnd.OTHER_SCOPE
        return PrefixMatchEnd.NEVER_SEEN

    def _has_likeness(self, owner: str, content: Content) -> bool:
        return self._device.cache.has_likeness(owner, content) or self._host.cache.has_likeness(owner, content)


def _end_of(contents: list[Content]) -> tuple[bytes, int]:
    """Identity and likeness of the last block, which the next one's go on from."""
    return (contents[-1].identity, contents[-1].likeness) if contents else (ROOT, 0)


def _common_length(left: Iterable[int], right: Iterable[int]) -> int:
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
