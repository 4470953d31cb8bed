"""What all replicas have in common, and how one is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvmanager.accounts import Quota
from kvmanager.adoption import adopt
from kvmanager.capacity import Capacity
from kvmanager.content import Identify
from kvmanager.cost_model import CostModel, Preemption
from kvmanager.counters import Counters
from kvmanager.events import EventSink
from kvmanager.kv_events import KVEventLog
from kvmanager.limits import Limits
from kvmanager.memory import Memory
from kvmanager.policies import Policy
from kvmanager.queue_bounds import QueueBounds
from kvmanager.replica import OnPrefixComputed, Replica
from kvmanager.scheduler import Scheduler
from kvmanager.sequences import SequenceFactory
from kvmanager.step import Speeds, StoredBlock


@dataclass(frozen=True, slots=True)
class ReplicaFactory:
    """Makes replicas. The attributes are what each of them is given."""

    limits: Limits
    policy: Policy
    preemption: Preemption
    prefix_caching: bool
    identify: Identify
    queue_bounds: QueueBounds
    sequences: SequenceFactory
    counters: Counters
    kv_events: KVEventLog
    emit: EventSink
    on_prefix_computed: OnPrefixComputed

    def make(
        self,
        name: str,
        capacity: Capacity,
        speeds: Speeds | None,
        quotas: Mapping[str, Quota],
        stored: Iterable[StoredBlock],
    ) -> Replica:
        """A replica without requests, whose blocks hold what is sound of `stored`."""
        costs = CostModel(self.preemption, capacity.block_size)
        costs.speeds = speeds or Speeds()
        memory = Memory(name, capacity, costs, quotas, self.kv_events, self.prefix_caching, self.identify)
        adopt(memory, stored, self.identify)
        limits = self.limits.within(capacity)
        scheduler = Scheduler(memory, limits, self.policy, self.queue_bounds, self.sequences, self.counters, self.emit)
        return Replica(name, memory, scheduler, self.sequences, self.counters, self.emit, self.on_prefix_computed)
