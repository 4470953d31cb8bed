"""Who has what of which executor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvmanager.manager import KVManager
from kvmanager.replica import Replica
from kvmanager.request import Request, RequestState
from kvmanager.step_load import Load
from kvmanager.tenant_counters import TenantCounters


@dataclass(slots=True)
class ShareView:
    """What a tenant, or the owner of a shared namespace, has of one executor. Swapped requests are not waiting ones.

    Attributes:
        executor: empty for requests that no executor has.
    """

    tenant: str
    executor: str
    referenced_device_blocks: int = 0
    cached_device_blocks: int = 0
    referenced_host_blocks: int = 0
    cached_host_blocks: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    swapped_requests: int = 0
    last_step: Load = field(default_factory=Load)


def share_views(manager: KVManager) -> list[ShareView]:
    """Who has what of which executor; only those that have something. Linear in requests."""
    shares = [share for replica in manager.replicas.values() for share in _shares_of(replica)]
    for tenant, number in _by_tenant(manager.homeless.values()).items():
        shares.append(ShareView(tenant, "", waiting_requests=number))
    return shares


def _shares_of(replica: Replica) -> list[ShareView]:
    scheduler, memory = replica.scheduler, replica.memory
    shares: dict[str, ShareView] = {}

    def share(tenant: str) -> ShareView:
        return shares.get(tenant) or shares.setdefault(tenant, ShareView(tenant, replica.name))

    for account in memory.device.pool.accounts:
        if account.num_charged or account.cached:
            own = share(account.owner)
            own.referenced_device_blocks, own.cached_device_blocks = account.num_charged, len(account.cached)
    for account in memory.host.pool.accounts:
        if account.num_charged or account.cached:
            own = share(account.owner)
            own.referenced_host_blocks, own.cached_host_blocks = account.num_charged, len(account.cached)
    for tenant, number in _by_tenant(scheduler.running.values()).items():
        share(tenant).running_requests = number
    for tenant, number in scheduler.waiting.tenants.items():
        share(tenant).waiting_requests = number
    for tenant, number in _by_tenant(scheduler.swapped.values()).items():
        share(tenant).swapped_requests = number
    for tenant, load in last_loads(replica).items():
        share(tenant).last_step = load
    return list(shares.values())


def _by_tenant(requests: Iterable[Request]) -> Counter[str]:
    return Counter(request.spec.tenant for request in requests)


def tenant_counters(manager: KVManager) -> dict[str, TenantCounters]:
    """What each tenant's requests have had since start. Linear in requests."""
    counters = {tenant: replace(ended) for tenant, ended in manager.counters.ended.items()}
    for request in manager.requests.values():
        if request.state is not RequestState.WAITING:
            tenant = request.spec.tenant
            if tenant not in counters:
                counters[tenant] = TenantCounters()
            counters[tenant].add_unfinished(request)
    return counters


def last_loads(replica: Replica) -> dict[str, Load]:
    """What each tenant had of an executor's last step; nothing while it has nothing to do."""
    return {} if replica.idle else replica.last_load.by_tenant()
