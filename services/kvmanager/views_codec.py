"""The memory map, KV events and pins: to the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from google.protobuf.duration_pb2 import Duration

from kvmanager import views
from kvmanager.counters import Counters
from kvmanager.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, Tier
from kvmanager.manager import KVManager
from kvmanager.memory_watch import MemoryChanges
from kvmanager.pins import Pin
from kvmanager.shares import ShareView, share_views, tenant_counters
from kvmanager.step import Speeds
from kvmanager.tenant_counters import TenantCounters
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2, memory_pb2

MESSAGE_BLOCKS = 4096
"""Most blocks in one message of a watch."""

MESSAGE_EVENTS = 1024
"""Most KV events in one message."""

IDENTITY_PREFIX_BYTES = 8

_TIERS = {Tier.DEVICE: common_pb2.TIER_DEVICE, Tier.HOST: common_pb2.TIER_HOST}


def encode_memory_map(
    manager: KVManager, bytes_per_block: int, include_blocks: bool
) -> kvmanager_pb2.GetMemoryMapResponse:
    """Totals, executors and tenants. At least one executor must have been attached at some time."""
    assert manager.capacity is not None
    replicas = views.replica_views(manager)
    device = [replica.device for replica in replicas]
    num_swapped = sum(replica.swapped_requests for replica in replicas)
    return kvmanager_pb2.GetMemoryMapResponse(
        block_size=manager.capacity.block_size,
        num_blocks=sum(pool.num_blocks for pool in device),
        free_blocks=sum(pool.free_blocks for pool in device),
        cached_blocks=sum(pool.cached_blocks for pool in device),
        referenced_blocks=sum(pool.referenced_blocks for pool in device),
        bytes_per_block=bytes_per_block,
        running_requests=sum(replica.running_requests for replica in replicas),
        waiting_requests=manager.num_waiting + num_swapped,
        swapped_requests=num_swapped,
        counters=_encode_counters(manager.counters, views.num_evicted(manager)),
        executors=[_encode_executor(manager, replica, include_blocks) for replica in replicas],
        tenants=[_encode_tenant(tenant) for tenant in views.tenant_views(manager)],
        shares=[_encode_share(share) for share in share_views(manager)],
        tenant_counters=[_encode_tenant_counters(*each) for each in tenant_counters(manager).items()],
    )


def _encode_executor(manager: KVManager, replica: views.ReplicaView, include_blocks: bool) -> memory_pb2.ExecutorMemory:
    blocks = views.block_views(manager.replicas[replica.executor]) if include_blocks else []
    return memory_pb2.ExecutorMemory(
        executor=replica.executor,
        device=_encode_pool(replica.device),
        host=_encode_pool(replica.host),
        running_requests=replica.running_requests,
        waiting_requests=replica.waiting_requests + replica.swapped_requests,
        swapped_requests=replica.swapped_requests,
        draining=replica.draining,
        speeds=_encode_speeds(replica.speeds),
        blocks=[_encode_block(block) for block in blocks],
        batch_sequences=replica.last_step.sequences,
        batch_prefill_tokens=replica.last_step.prefill_tokens,
        batch_decode_tokens=replica.last_step.decode_tokens,
    )


def _encode_share(share: ShareView) -> kvmanager_pb2.TenantShare:
    return kvmanager_pb2.TenantShare(
        tenant=share.tenant,
        executor=share.executor,
        referenced_device_blocks=share.referenced_device_blocks,
        cached_device_blocks=share.cached_device_blocks,
        referenced_host_blocks=share.referenced_host_blocks,
        cached_host_blocks=share.cached_host_blocks,
        running_requests=share.running_requests,
        waiting_requests=share.waiting_requests,
        swapped_requests=share.swapped_requests,
        batch_sequences=share.last_step.sequences,
        batch_prefill_tokens=share.last_step.prefill_tokens,
        batch_decode_tokens=share.last_step.decode_tokens,
    )


def _encode_tenant_counters(tenant: str, counters: TenantCounters) -> kvmanager_pb2.TenantCounters:
    encoded = memory_pb2.MemoryCounters(
        prompt_tokens=counters.prompt_tokens,
        cached_prompt_tokens=counters.cached_prompt_tokens,
        generated_tokens=counters.generated_tokens,
        preemptions=counters.preemptions,
        waiting_seconds=counters.waiting_seconds,
        running_seconds=counters.running_seconds,
        preempted_seconds=counters.preempted_seconds,
    )
    return kvmanager_pb2.TenantCounters(tenant=tenant, counters=encoded)


def _encode_pool(pool: views.PoolView) -> memory_pb2.PoolState:
    return memory_pb2.PoolState(
        num_blocks=pool.num_blocks,
        free_blocks=pool.free_blocks,
        cached_blocks=pool.cached_blocks,
        referenced_blocks=pool.referenced_blocks,
    )


def _encode_speeds(speeds: Speeds) -> memory_pb2.Speeds:
    return memory_pb2.Speeds(
        prefill_tokens_per_s=speeds.prefill_tokens_per_s,
        swap_out_blocks_per_s=speeds.swap_out_blocks_per_s,
        swap_in_blocks_per_s=speeds.swap_in_blocks_per_s,
        copy_blocks_per_s=speeds.copy_blocks_per_s,
    )


def _encode_tenant(tenant: views.TenantView) -> memory_pb2.TenantMemory:
    return memory_pb2.TenantMemory(
        owner=tenant.owner,
        charged_blocks=tenant.charged_blocks,
        cached_blocks=tenant.cached_blocks,
        pinned_blocks=tenant.pinned_blocks,
        reserved_blocks=tenant.quota.reserved_blocks,
        max_blocks=tenant.quota.max_blocks,
        weight=tenant.quota.weight,
    )


def _encode_counters(counters: Counters, num_evicted: int) -> memory_pb2.MemoryCounters:
    return memory_pb2.MemoryCounters(
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        cached_prompt_tokens=counters.cached_prompt_tokens,
        host_cached_prompt_tokens=counters.host_cached_prompt_tokens,
        generated_tokens=counters.generated_tokens,
        preemptions=counters.preemptions,
        preemptions_by_swap=counters.preemptions_by_swap,
        swapped_out_blocks=counters.swapped_out_blocks,
        swapped_in_blocks=counters.swapped_in_blocks,
        copied_blocks=counters.copied_blocks,
        evicted_blocks=num_evicted,
        peak_referenced_blocks=counters.peak_referenced_blocks,
        slot_steps=counters.slot_steps,
        unshared_slot_steps=counters.unshared_slot_steps,
        reserved_slot_steps=counters.reserved_slot_steps,
        internal_slot_steps=counters.internal_slot_steps,
        waiting_seconds=counters.waiting_seconds,
        running_seconds=counters.running_seconds,
        preempted_seconds=counters.preempted_seconds,
    )


def _encode_block(block: views.BlockView) -> memory_pb2.Block:
    return memory_pb2.Block(
        block_id=block.block_id,
        tier=_TIERS[block.tier],
        reference_count=block.reference_count,
        cached=block.cached,
        owner=block.owner,
        fill=block.fill,
        identity_prefix=block.identity[:IDENTITY_PREFIX_BYTES],
    )


def encode_changes(changes: MemoryChanges) -> Iterator[kvmanager_pb2.WatchMemoryResponse]:
    """One message, or several where many blocks have changed; only the first of a snapshot says that it is one."""
    if changes.removed:
        yield kvmanager_pb2.WatchMemoryResponse(executor=changes.executor, removed=True)
        return
    for start in range(0, max(1, len(changes.blocks)), MESSAGE_BLOCKS):
        yield kvmanager_pb2.WatchMemoryResponse(
            executor=changes.executor,
            snapshot=changes.snapshot and start == 0,
            num_device_blocks=changes.num_device_blocks,
            num_host_blocks=changes.num_host_blocks,
            blocks=[_encode_block(block) for block in changes.blocks[start : start + MESSAGE_BLOCKS]],
        )


def encode_kv_events(first: int, events: Sequence[KVEvent]) -> Iterator[kvmanager_pb2.SubscribeKvEventsResponse]:
    """Numbered events in their order, as few messages as that allows.

    Args:
        first: the number of the first of them.
    """
    for executor, group in groupby(events, key=lambda event: event.executor):
        together = list(group)
        for start in range(0, len(together), MESSAGE_EVENTS):
            chunk = together[start : start + MESSAGE_EVENTS]
            yield kvmanager_pb2.SubscribeKvEventsResponse(
                sequence_number=first, executor=executor, events=[_encode_event(event) for event in chunk]
            )
            first += len(chunk)


def encode_cached_blocks(
    number: int, blocks: Sequence[BlockStored]
) -> Iterator[kvmanager_pb2.SubscribeKvEventsResponse]:
    """Blocks in their order, in one message at least.

    Args:
        number: of the event that follows.
    """
    messages = encode_kv_events(number, blocks) if blocks else [kvmanager_pb2.SubscribeKvEventsResponse()]
    for message in messages:
        message.sequence_number = number
        message.cached_before = True
        yield message


def _encode_event(event: KVEvent) -> kvmanager_pb2.KvEvent:
    if isinstance(event, BlockStored):
        stored = kvmanager_pb2.BlockStored(
            identity=event.identity,
            parent_identity=event.parent,
            token_ids=event.tokens,
            tier=_TIERS[event.tier],
        )
        return kvmanager_pb2.KvEvent(stored=stored)
    if isinstance(event, BlockRemoved):
        removed = kvmanager_pb2.BlockRemoved(identity=event.identity, tier=_TIERS[event.tier])
        return kvmanager_pb2.KvEvent(removed=removed)
    assert isinstance(event, AllBlocksCleared)
    return kvmanager_pb2.KvEvent(cleared=kvmanager_pb2.AllBlocksCleared())


def encode_pin(pin: Pin, block_size: int, now: float) -> inference_pb2.Pin:
    """A pin that has been computed at least once."""
    assert pin.expires is not None
    num_blocks = pin.charges.total()
    remaining = Duration()
    remaining.FromMicroseconds(max(0, round((pin.expires - now) * 1e6)))
    return inference_pb2.Pin(
        pin_id=pin.pin_id,
        pinned_tokens=num_blocks * block_size,
        pinned_blocks=num_blocks,
        remaining=remaining,
        resident=pin.blocks is not None,
    )
