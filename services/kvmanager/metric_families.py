"""The KV manager's metrics by name. docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from kvmanager import views
from kvmanager.counters import Counters
from kvmanager.manager import KVManager
from services.kvmanager.metrics import DriverMetrics
from services.kvmanager.term import Term
from services.telemetry.metrics import Metrics

MAX_OWNERS = 100
"""So many are shown one by one, those with the most blocks first; the others together. Where a proxy in front says who
is calling, nobody knows how many there are."""

OTHERS = "(others)"
"""No tenant can be called that."""

_METRICS = Metrics("octavo_kvmanager_", {})


class KVManagerFamilies:
    """Makes metric families of what is counted.

    Args:
        driver: What is counted over all terms of this process.
    """

    def __init__(self, driver: DriverMetrics) -> None:
        self._driver = driver

    def collect(self, term: Term | None, state_available: bool) -> Iterator[Metric]:
        """All of them, as they are now.

        Args:
            term: None while this KV manager stands by; then there is nothing to tell of memory.
        """
        yield _METRICS.gauge(
            "leader", "1 while this KV manager leads its group, 0 while it stands by.", term is not None
        )
        yield _METRICS.gauge("state_available", "1 while the state store is there.", state_available)
        yield from self._driver_families()
        if term is None:
            return
        driver, manager = term.driver, term.driver.manager
        yield _METRICS.gauge("serving", "1 while requests are taken and steps go on.", driver.serving)
        yield _METRICS.gauge("epoch", "Epoch of the latest lead over an executor.", driver.backend.epoch)
        yield _METRICS.gauge("gateways", "Gateways that are attached.", driver.num_sessions)
        yield _METRICS.gauge("executors", "Executors that are attached.", len(manager.replicas))
        yield _METRICS.gauge("block_bytes", "Bytes of one block, of the largest executor.", driver.bytes_per_block)
        yield _METRICS.gauge(
            "block_tokens", "Tokens in one block.", manager.capacity.block_size if manager.capacity else 0
        )
        yield from _executor_families(views.replica_views(manager))
        yield from _tenant_families(views.tenant_views(manager))
        yield from _memory_families(manager.counters, views.num_evicted(manager))
        yield from _queue_families(manager)

    def _driver_families(self) -> Iterator[Metric]:
        driver = self._driver
        yield _METRICS.counters(
            "tokens",
            "Tokens of steps that were sent to executors.",
            ["phase"],
            {("prefill",): driver.prefill_tokens, ("decode",): driver.decode_tokens},
        )
        yield _METRICS.histogram("step_tokens", "Tokens of a step.", driver.step_tokens)
        yield _METRICS.histogram("step_sequences", "Sequences with a row in a step.", driver.step_sequences)
        yield _METRICS.histograms(
            "executor_step_seconds",
            "What a step took its executor, as the executor says.",
            ["executor"],
            {(executor,): histogram for executor, histogram in driver.step_seconds.items()},
        )
        yield _METRICS.counters(
            "step_seconds",
            "Time of the KV manager itself for steps: to plan and write them, to read and apply their results.",
            ["part"],
            {("plan",): driver.planning_seconds, ("apply",): driver.applying_seconds},
        )
        yield _METRICS.counters(
            "requests",
            "Requests that were answered, refused or given up, by reason; without those that their clients gave up.",
            ["reason"],
            {(reason,): count for reason, count in driver.ended.items()},
        )
        yield _METRICS.histogram("queue_seconds", "Before an answered request was first admitted.", driver.queue_time)
        yield _METRICS.histogram(
            "prefill_seconds", "From an answered request's admission to its first token.", driver.prefill_time
        )
        yield _METRICS.histogram(
            "decode_seconds", "From an answered request's first token to its end.", driver.decode_time
        )
        yield _METRICS.histogram(
            "preempted_seconds", "For how long an answered request was preempted.", driver.preempted_time
        )
        yield _METRICS.counter("executors_attached", "How often an executor was attached.", driver.executors_attached)
        yield _METRICS.counter("executors_lost", "How often an executor was lost.", driver.executors_lost)
        yield _METRICS.counter("stalls", "How often no step went on while there was work.", driver.stalls)
        yield _METRICS.gauge("stalled", "1 while no step goes on although there is work.", driver.stalled)


def _executor_families(replicas: Sequence[views.ReplicaView]) -> Iterator[Metric]:
    blocks: dict[tuple[str, ...], float] = {}
    requests: dict[tuple[str, ...], float] = {}
    speeds: dict[tuple[str, ...], float] = {}
    for each in replicas:
        for tier, pool in (("device", each.device), ("host", each.host)):
            blocks[each.executor, tier, "free"] = pool.free_blocks
            blocks[each.executor, tier, "cached"] = pool.cached_blocks
            blocks[each.executor, tier, "referenced"] = pool.referenced_blocks
        requests[each.executor, "running"] = each.running_requests
        requests[each.executor, "waiting"] = each.waiting_requests
        requests[each.executor, "swapped"] = each.swapped_requests
        speeds[each.executor, "prefill_tokens"] = each.speeds.prefill_tokens_per_s
        speeds[each.executor, "swap_out_blocks"] = each.speeds.swap_out_blocks_per_s
        speeds[each.executor, "swap_in_blocks"] = each.speeds.swap_in_blocks_per_s
        speeds[each.executor, "copy_blocks"] = each.speeds.copy_blocks_per_s
    yield _METRICS.gauges(
        "blocks",
        "Blocks by state; the three states of a tier add up to its pool.",
        ["executor", "tier", "state"],
        blocks,
    )
    yield _METRICS.gauges(
        "executor_requests", "Requests of an executor by state; preempted ones wait.", ["executor", "state"], requests
    )
    yield _METRICS.gauges(
        "executor_draining",
        "1 while an executor is given nothing new.",
        ["executor"],
        {(each.executor,): each.draining for each in replicas},
    )
    yield _METRICS.gauges(
        "executor_speed", "What an executor does in a second, as it measured; 0: unknown.", ["executor", "what"], speeds
    )


def _tenant_families(tenants: Sequence[views.TenantView]) -> Iterator[Metric]:
    blocks: dict[tuple[str, ...], float] = {}
    limits: dict[tuple[str, ...], float] = {}
    by_size = sorted(tenants, key=lambda each: each.charged_blocks + each.cached_blocks, reverse=True)
    for index, each in enumerate(by_size):
        owner = each.owner if index < MAX_OWNERS else OTHERS
        for state, count in (
            ("charged", each.charged_blocks),
            ("cached", each.cached_blocks),
            ("pinned", each.pinned_blocks),
        ):
            blocks[owner, state] = blocks.get((owner, state), 0) + count
        if owner != OTHERS:
            limits[owner, "reserved"] = each.quota.reserved_blocks
            limits[owner, "max"] = each.quota.max_blocks
    yield _METRICS.gauges(
        "tenant_blocks",
        "Device blocks of a tenant, or of a shared namespace, on all executors: charged are referenced ones.",
        ["tenant", "state"],
        blocks,
    )
    yield _METRICS.gauges(
        "tenant_quota_blocks",
        "Blocks of each executor that are kept for a tenant, and most that it may have; a max of 0 is none.",
        ["tenant", "limit"],
        limits,
    )


def _memory_families(counters: Counters, num_evicted: int) -> Iterator[Metric]:
    reserved, internal = counters.reserved_slot_steps, counters.internal_slot_steps
    yield _METRICS.counters(
        "slot_steps",
        "Token slots of referenced blocks, added up over steps that are looked at: used ones hold a token; the others"
        " are the waste of the paper's figure 2. External fragmentation is 0: every block fits every request.",
        ["use"],
        {
            ("used",): counters.slot_steps - reserved - internal,
            ("reserved",): reserved,
            ("internal",): internal,
            ("external",): 0,
        },
    )
    yield _METRICS.counter(
        "unshared_slot_steps",
        "Token slots that would be needed if no block were shared, added up as slot_steps are.",
        counters.unshared_slot_steps,
    )
    yield _METRICS.gauge(
        "peak_referenced_blocks", "Most blocks referenced at once on an executor.", counters.peak_referenced_blocks
    )
    yield _METRICS.counter("evictions", "Cached blocks that gave way to other content.", num_evicted)
    yield _METRICS.counter(
        "copied_blocks",
        "Blocks copied because they were shared and written to (copy-on-write).",
        counters.copied_blocks,
    )
    yield _METRICS.counters(
        "swapped_blocks",
        "Blocks moved to the host tier (out) and back (in).",
        ["direction"],
        {("out",): counters.swapped_out_blocks, ("in",): counters.swapped_in_blocks},
    )


def _queue_families(manager: KVManager) -> Iterator[Metric]:
    counters = manager.counters
    swapped = sum(len(replica.scheduler.swapped) for replica in manager.replicas.values())
    running = sum(len(replica.scheduler.running) for replica in manager.replicas.values())
    yield _METRICS.gauges(
        "current_requests",
        "Requests by state, over all executors and those that no executor has; preempted ones wait or are swapped.",
        ["state"],
        {("running",): running, ("waiting",): manager.num_waiting, ("swapped",): swapped},
    )
    yield _METRICS.counter("steps", "Steps that were planned.", counters.steps)
    yield _METRICS.counter("generated_tokens", "Tokens that executors have sampled.", counters.generated_tokens)
    yield _METRICS.counters(
        "preemptions",
        "Requests that gave their blocks back; by recomputation also those whose executor was lost.",
        ["kind"],
        {
            ("swap",): counters.preemptions_by_swap,
            ("recompute",): counters.preemptions - counters.preemptions_by_swap,
        },
    )
    yield _METRICS.counter("prefix_cache_queried_tokens", "Prompt tokens of admitted requests.", counters.prompt_tokens)
    yield _METRICS.counters(
        "prefix_cache_hit_tokens",
        "Prompt tokens of admitted requests that came from the prefix cache, by tier.",
        ["tier"],
        {
            ("device",): counters.cached_prompt_tokens - counters.host_cached_prompt_tokens,
            ("host",): counters.host_cached_prompt_tokens,
        },
    )
    yield _METRICS.counters(
        "request_seconds",
        "Time that requests spent in each state, added up over requests when they leave it.",
        ["state"],
        {
            ("waiting",): counters.waiting_seconds,
            ("running",): counters.running_seconds,
            ("preempted",): counters.preempted_seconds,
        },
    )
