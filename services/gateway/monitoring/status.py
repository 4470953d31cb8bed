"""A sample as one who looks may see it: the operator all of it, a tenant only what it has itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.v1 import inference_pb2, kvmanager_pb2, memory_pb2, monitoring_pb2
from services.gateway.monitoring.groups import Group
from services.gateway.monitoring.samples import MemoryMap, Sample
from services.gateway.viewers import Viewer

TenantShare = kvmanager_pb2.TenantShare


def status_of(sample: Sample, viewer: Viewer, model: inference_pb2.Model | None) -> monitoring_pb2.Status:
    """Everything about one moment."""
    status = past_status(sample, viewer)
    if model is not None:
        status.model.CopyFrom(model)
    if viewer.tenant is None:
        status.tenants.extend(_all_tenants(sample))
    else:
        status.tenants.append(_tenant(viewer.tenant, sample))
    return status


def past_status(sample: Sample, viewer: Viewer) -> monitoring_pb2.Status:
    """What is told of a moment that is over: neither the model nor tenants."""
    status = monitoring_pb2.Status(ready=sample.ready, state_available=sample.state_available)
    status.time.FromMicroseconds(round(sample.time * 1e6))
    status.bytes_per_block = max((memory.bytes_per_block for _, memory in sample.memory), default=0)
    if viewer.tenant is None:
        _add_everything(status, sample)
    else:
        _add_share(status, sample, viewer.tenant)
    return status


# The operator


def _add_everything(status: monitoring_pb2.Status, sample: Sample) -> None:
    for group, memory in sample.memory:
        status.running_requests += memory.running_requests
        status.waiting_requests += memory.waiting_requests - memory.swapped_requests
        status.swapped_requests += memory.swapped_requests
        _add_counters(status.counters, memory.counters)
        for executor in memory.executors:
            shown = status.executors.add()
            shown.CopyFrom(executor)
            shown.executor = group.named(executor.executor)
            status.batch_sequences += executor.batch_sequences
            status.batch_prefill_tokens += executor.batch_prefill_tokens
            status.batch_decode_tokens += executor.batch_decode_tokens


def _add_counters(total: memory_pb2.MemoryCounters, counters: memory_pb2.MemoryCounters) -> None:
    for field, value in counters.ListFields():
        setattr(total, field.name, getattr(total, field.name) + value)


def _all_tenants(sample: Sample) -> list[monitoring_pb2.TenantStatus]:
    found: dict[str, monitoring_pb2.TenantStatus] = {}
    for _, memory in sample.memory:
        for tenant in memory.tenants:
            _add_memory(found.get(tenant.owner) or found.setdefault(tenant.owner, _nothing_of(tenant.owner)), tenant)
        for share in memory.shares:
            _add_requests(found.get(share.tenant) or found.setdefault(share.tenant, _nothing_of(share.tenant)), share)
    return [found[name] for name in sorted(found)]


# One tenant


def _add_share(status: monitoring_pb2.Status, sample: Sample, tenant: str) -> None:
    for share in _shares(sample, tenant):
        status.running_requests += share.running_requests
        status.waiting_requests += share.waiting_requests
        status.swapped_requests += share.swapped_requests
        status.batch_sequences += share.batch_sequences
        status.batch_prefill_tokens += share.batch_prefill_tokens
        status.batch_decode_tokens += share.batch_decode_tokens
    for group, memory in sample.memory:
        for each in memory.tenant_counters:
            if each.tenant == tenant:
                _add_counters(status.counters, each.counters)
        status.executors.extend(_executors_of_tenant(group, memory, tenant))


def _executors_of_tenant(group: Group, memory: MemoryMap, tenant: str) -> Iterator[memory_pb2.ExecutorMemory]:
    """How large each executor is, and what the tenant has of it: all else counts as free."""
    shares = {share.executor: share for share in memory.shares if share.tenant == tenant}
    for executor in memory.executors:
        share = shares.get(executor.executor, TenantShare())
        yield memory_pb2.ExecutorMemory(
            executor=group.named(executor.executor),
            device=_pool(executor.device.num_blocks, share.referenced_device_blocks, share.cached_device_blocks),
            host=_pool(executor.host.num_blocks, share.referenced_host_blocks, share.cached_host_blocks),
            running_requests=share.running_requests,
            waiting_requests=share.waiting_requests + share.swapped_requests,
            swapped_requests=share.swapped_requests,
            batch_sequences=share.batch_sequences,
            batch_prefill_tokens=share.batch_prefill_tokens,
            batch_decode_tokens=share.batch_decode_tokens,
        )


def _pool(num_blocks: int, referenced: int, cached: int) -> memory_pb2.PoolState:
    return memory_pb2.PoolState(
        num_blocks=num_blocks,
        free_blocks=num_blocks - referenced - cached,
        cached_blocks=cached,
        referenced_blocks=referenced,
    )


def _tenant(name: str, sample: Sample) -> monitoring_pb2.TenantStatus:
    status = _nothing_of(name)
    for _, memory in sample.memory:
        for tenant in memory.tenants:
            if tenant.owner == name:
                _add_memory(status, tenant)
    for share in _shares(sample, name):
        _add_requests(status, share)
    return status


def _nothing_of(name: str) -> monitoring_pb2.TenantStatus:
    return monitoring_pb2.TenantStatus(memory=memory_pb2.TenantMemory(owner=name))


def _add_memory(status: monitoring_pb2.TenantStatus, memory: memory_pb2.TenantMemory) -> None:
    """What one group has. What a tenant may have is said for each executor, so that is no sum."""
    status.memory.charged_blocks += memory.charged_blocks
    status.memory.cached_blocks += memory.cached_blocks
    status.memory.pinned_blocks += memory.pinned_blocks
    status.memory.reserved_blocks = memory.reserved_blocks
    status.memory.max_blocks = memory.max_blocks
    status.memory.weight = memory.weight


def _add_requests(status: monitoring_pb2.TenantStatus, share: TenantShare) -> None:
    status.running_requests += share.running_requests
    status.waiting_requests += share.waiting_requests
    status.swapped_requests += share.swapped_requests


def _shares(sample: Sample, tenant: str) -> Iterable[TenantShare]:
    return (share for _, memory in sample.memory for share in memory.shares if share.tenant == tenant)
