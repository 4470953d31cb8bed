"""What the KV manager has counted: whether all that the soak is meant to test really happened."""

from collections.abc import Mapping

from octavo.v1 import kvmanager_pb2

# Fewer requests may do without some of it.
_ENOUGH_REQUESTS = 300

_COUNTERS = (
    *("steps", "prompt_tokens", "cached_prompt_tokens", "host_cached_prompt_tokens", "generated_tokens"),
    *("preemptions_by_swap", "swapped_out_blocks", "swapped_in_blocks", "copied_blocks", "evicted_blocks"),
)
_SLOT_COUNTERS = ("slot_steps", "unshared_slot_steps", "reserved_slot_steps", "internal_slot_steps")

MemoryMap = kvmanager_pb2.GetMemoryMapResponse


def grown(before: MemoryMap, after: MemoryMap) -> dict[str, int]:
    """By how much each counter is larger; a lost executor's requests count as preempted by recomputation."""
    result = {
        name: int(getattr(after.counters, name) - getattr(before.counters, name))
        for name in (*_COUNTERS, *_SLOT_COUNTERS)
    }
    preemptions = after.counters.preemptions - before.counters.preemptions
    return result | {"preemptions_by_recomputation": int(preemptions - result["preemptions_by_swap"])}


def summary(before: MemoryMap, after: MemoryMap) -> dict[str, float]:
    """The counters of the workload, waste and sharing in percent."""
    counts = grown(before, after)
    slots = {name: counts.pop(name) for name in _SLOT_COUNTERS}
    wasted = slots["reserved_slot_steps"] + slots["internal_slot_steps"]
    saved = slots["unshared_slot_steps"] - slots["slot_steps"]
    return counts | {
        "device_blocks": after.num_blocks,
        "host_blocks": sum(executor.host.num_blocks for executor in after.executors),
        "peak_referenced_blocks": after.counters.peak_referenced_blocks,
        "waste_percent": round(100 * wasted / max(1, slots["slot_steps"]), 2),
        "saved_by_sharing_percent": round(100 * saved / max(1, slots["unshared_slot_steps"]), 2),
    }


def check_totals(before: MemoryMap, after: MemoryMap, num_requests: int, num_executors: int) -> list[str]:
    """Which of the ways to run out of memory, and to save it, were not taken by enough requests."""
    if num_requests < _ENOUGH_REQUESTS:
        return []
    counts: Mapping[str, int] = grown(before, after)
    idle = [executor.executor for executor in after.executors if not executor.device.cached_blocks]
    missing = [name for name in (*_COUNTERS, "preemptions_by_recomputation") if not counts[name]]
    problems = [f"the workload had no {name}" for name in missing]
    if num_executors > 1 and idle:
        problems.append(f"{idle} have cached nothing")
    return problems
