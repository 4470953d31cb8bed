"""The memory as others may see it: totals, tenants, and the physical map with its changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvmanager.accounts import Quota
from kvmanager.block import Block
from kvmanager.block_pool import BlockPool
from kvmanager.kv_events import Tier
from kvmanager.manager import KVManager
from kvmanager.replica import Replica
from kvmanager.shares import last_loads
from kvmanager.step import Speeds
from kvmanager.step_load import Load


@dataclass(frozen=True, slots=True)
class PoolView:
    """Blocks of one tier by state; they add up to `num_blocks`."""

    num_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One executor. Swapped requests are not among the waiting ones."""

    executor: str
    device: PoolView
    host: PoolView
    running_requests: int
    waiting_requests: int
    swapped_requests: int
    draining: bool
    speeds: Speeds
    last_step: Load


@dataclass(frozen=True, slots=True)
class TenantView:
    """One owner's device blocks, those of all executors together."""

    owner: str
    charged_blocks: int
    cached_blocks: int
    pinned_blocks: int
    quota: Quota


@dataclass(slots=True)  # not frozen: there are very many
class BlockView:
    """One physical block.

    Attributes:
        owner: whom it is charged to, or counted for while it is cached; empty for a free one.
        fill: slots that hold a token.
        identity: of its content; empty where it has none that can be given out.
    """

    block_id: int
    tier: Tier
    reference_count: int
    cached: bool
    owner: str
    fill: int
    identity: bytes


def replica_views(manager: KVManager) -> list[ReplicaView]:
    """Every executor that is attached."""
    return [_replica_view(replica) for replica in manager.replicas.values()]


def _replica_view(replica: Replica) -> ReplicaView:
    scheduler, memory = replica.scheduler, replica.memory
    return ReplicaView(
        replica.name,
        _pool_view(memory.device.pool),
        _pool_view(memory.host.pool),
        len(scheduler.running),
        len(scheduler.waiting),
        len(scheduler.swapped),
        replica.draining,
        memory.costs.speeds,
        _total(last_loads(replica).values()),
    )


def _total(loads: Iterable[Load]) -> Load:
    total = Load()
    for load in loads:
        total.sequences += load.sequences
        total.prefill_tokens += load.prefill_tokens
        total.decode_tokens += load.decode_tokens
    return total


def _pool_view(pool: BlockPool) -> PoolView:
    return PoolView(pool.num_blocks, pool.num_free, pool.num_cached, pool.num_referenced)


def tenant_views(manager: KVManager) -> list[TenantView]:
    """Every owner that has blocks or a quota, by name."""
    charged: dict[str, int] = dict.fromkeys(manager.quotas, 0)
    cached, pinned = dict(charged), dict(charged)
    for replica in manager.replicas.values():
        for account in replica.memory.pool.accounts:
            owner = account.owner
            charged[owner] = charged.get(owner, 0) + account.num_charged
            cached[owner] = cached.get(owner, 0) + len(account.cached)
            pinned[owner] = pinned.get(owner, 0) + account.num_pinned
    return [
        TenantView(owner, charged[owner], cached[owner], pinned[owner], manager.quotas.get(owner, Quota()))
        for owner in sorted(charged)
    ]


def num_evicted(manager: KVManager) -> int:
    """Device blocks whose content gave way to other content, since start."""
    now = sum(replica.memory.device.cache.num_evicted for replica in manager.replicas.values())
    return manager.evicted_before + now


def has_cached(manager: KVManager, identity: bytes) -> bool:
    """Whether a block of this identity can be given out, on whatever executor."""
    return any(identity in cache for replica in manager.replicas.values() for cache in replica.memory.caches)


def cached_identities(manager: KVManager) -> set[bytes]:
    """Of all blocks that can be given out. Linear in blocks."""
    return set().union(*(cache for replica in manager.replicas.values() for cache in replica.memory.caches))


def block_views(replica: Replica) -> list[BlockView]:
    """Every block of an executor: the device's by id, then the host's."""
    fills = Fills(replica)
    memory = replica.memory
    device = [block_view(block, Tier.DEVICE, fills) for block in memory.device.pool.blocks]
    return device + [block_view(block, Tier.HOST, fills) for block in memory.host.pool.blocks]


class Fills:
    """Slots that hold a token, in blocks without content: those of sequences that are not full, or not offered yet."""

    def __init__(self, replica: Replica) -> None:
        self._block_size = replica.memory.block_size
        self._fills: dict[tuple[Tier, int], int] = {}
        for sequence in replica.scheduler.live_sequences():
            self._add(Tier.DEVICE, sequence.table, sequence.num_computed, sequence.num_registered)
        for sequence in replica.scheduler.swapped_sequences():
            self._add(Tier.HOST, sequence.host_table, sequence.num_computed, sequence.num_registered)

    def _add(self, tier: Tier, table: list[Block], num_computed: int, num_registered: int) -> None:
        for index in range(num_registered, len(table)):
            fill = min(max(num_computed - index * self._block_size, 0), self._block_size)
            self._fills[tier, table[index].block_id] = fill

    def of(self, block: Block, tier: Tier) -> int:
        if block.content is not None:
            return self._block_size
        return self._fills.get((tier, block.block_id), 0)

    def partial(self, tier: Tier) -> set[int]:
        """Blocks that are being filled: what they hold changes without anything else about them changing."""
        return {block_id for each, block_id in self._fills if each is tier}


def block_view(block: Block, tier: Tier, fills: Fills) -> BlockView:
    """One block as it is."""
    return BlockView(
        block.block_id,
        tier,
        block.reference_count,
        block.content is not None,
        block.account.owner if block.account is not None else "",
        fills.of(block, tier),
        block.content.identity if block.content is not None else b"",
    )
