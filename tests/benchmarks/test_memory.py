"""Whether blocks and resident memory count as flat."""

import os
import random
from typing import Any

import pytest

from benchmarks.soak.memory import MIB, Growth, resident_bytes
from benchmarks.soak.stack import check_idle
from benchmarks.soak.totals import check_totals, grown
from octavo.v1 import common_pb2, kvmanager_pb2, memory_pb2


def noisy(start: float, end: float, count: int = 300) -> list[int]:
    """From start to end in MiB, up and down by one MiB."""
    return [round((start + (end - start) * i / count + random.uniform(-1, 1)) * MIB) for i in range(count)]


@pytest.mark.parametrize("name", ["gateway", "kvmanager", "executor", "executor-2"])
def test_flat_memory_passes_and_a_leak_does_not(name: str) -> None:
    assert Growth.of(noisy(80, 80)).problem(name) is None
    assert Growth.of(noisy(80, 400)).problem(name) is not None


def test_growth_while_warming_up_does_not_count() -> None:
    warm_up = noisy(50, 200, 60)
    assert Growth.of(warm_up + noisy(200, 201, 240)).problem("gateway") is None


def test_a_single_peak_does_not_count() -> None:
    samples = noisy(80, 80)
    samples[-1] += 500 * MIB
    growth = Growth.of(samples)
    assert growth.problem("gateway") is None
    assert growth.peak > 500 * MIB


def test_few_samples_are_enough() -> None:
    assert Growth.of([5 * MIB]) == Growth(5 * MIB, 5 * MIB, 5 * MIB, 5 * MIB)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc here")
def test_a_process_is_measured_while_it_is_there() -> None:
    mine = resident_bytes(os.getpid())
    assert mine is not None
    assert mine > MIB
    assert resident_bytes(2**22 + 1) is None


def pool(**changes: int) -> memory_pb2.PoolState:
    return memory_pb2.PoolState(**{"num_blocks": 5, "free_blocks": 3, "cached_blocks": 2, **changes})


def memory_map(
    device: dict[str, int] | None = None, host: dict[str, int] | None = None, **changes: int
) -> kvmanager_pb2.GetMemoryMapResponse:
    """Two executors; the second one is as it should be."""
    blocks = [
        memory_pb2.Block(block_id=index, tier=tier, cached=index < 2)
        for tier in (common_pb2.TIER_DEVICE, common_pb2.TIER_HOST)
        for index in range(5)
    ]
    executors = [
        memory_pb2.ExecutorMemory(executor="one", device=pool(**device or {}), host=pool(**host or {}), blocks=blocks),
        memory_pb2.ExecutorMemory(executor="two", device=pool(), host=pool(), blocks=blocks),
    ]
    state = {"num_blocks": 10, "free_blocks": 6, "cached_blocks": 4, **changes}
    tenants = [memory_pb2.TenantMemory(owner="default", cached_blocks=4)]
    return kvmanager_pb2.GetMemoryMapResponse(executors=executors, tenants=tenants, **state)


def test_blocks_that_are_all_there_pass() -> None:
    assert check_idle(memory_map(), 2) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"free_blocks": 5},
        {"referenced_blocks": 1, "free_blocks": 5},
        {"running_requests": 1},
        {"waiting_requests": 1},
        {"device": {"cached_blocks": 1, "free_blocks": 4}},
        {"device": {"referenced_blocks": 1, "free_blocks": 2}},
        {"host": {"referenced_blocks": 1, "free_blocks": 2}},
        {"host": {"free_blocks": 2}},
        {"host": {"cached_blocks": 3, "free_blocks": 2}},
    ],
    ids=str,
)
def test_what_is_left_over_is_found(changes: dict[str, Any]) -> None:
    assert check_idle(memory_map(**changes), 2)


@pytest.mark.parametrize("index", [3, 8], ids=["device", "host"])
def test_a_reference_that_nobody_counts_is_found(index: int) -> None:
    memory = memory_map()
    memory.executors[1].blocks[index].reference_count = 1
    assert check_idle(memory, 2)


def test_an_executor_that_is_not_there_is_found() -> None:
    assert check_idle(memory_map(), 3)


def test_a_pin_that_is_left_is_found() -> None:
    memory = memory_map()
    memory.tenants[0].pinned_blocks = 1
    assert check_idle(memory, 2)


def counted(**changes: float) -> kvmanager_pb2.GetMemoryMapResponse:
    """Executors that everything happened on."""
    memory = memory_map()
    for field in memory.counters.DESCRIPTOR.fields:
        setattr(memory.counters, field.name, 100)
    memory.counters.preemptions_by_swap = 60
    for name, value in changes.items():
        setattr(memory.counters, name, value)
    return memory


NOTHING = kvmanager_pb2.GetMemoryMapResponse()


def test_totals_pass_where_everything_happened() -> None:
    assert check_totals(NOTHING, counted(), 500, 2) == []
    assert grown(NOTHING, counted())["preemptions_by_recomputation"] == 40


@pytest.mark.parametrize(
    "name", ["preemptions_by_swap", "swapped_in_blocks", "host_cached_prompt_tokens", "copied_blocks", "evicted_blocks"]
)
def test_what_never_happened_is_found(name: str) -> None:
    assert check_totals(NOTHING, counted(**{name: 0}), 500, 2)
    # All of it before the workload.
    assert check_totals(counted(), counted(), 500, 2)
    # A few requests need not cause it.
    assert check_totals(NOTHING, counted(**{name: 0}), 20, 2) == []


def test_an_executor_that_was_never_used_is_found() -> None:
    memory = counted()
    memory.executors[1].device.cached_blocks = 0
    assert check_totals(NOTHING, memory, 500, 2)
