"""Whether blocks and resident memory count as flat."""

import os
import random

import pytest

from benchmarks.soak.memory import MIB, Growth, resident_bytes
from benchmarks.soak.stack import check_idle
from octavo.v1 import kvmanager_pb2


def noisy(start: float, end: float, count: int = 300) -> list[int]:
    """From start to end in MiB, up and down by one MiB."""
    return [round((start + (end - start) * i / count + random.uniform(-1, 1)) * MIB) for i in range(count)]


@pytest.mark.parametrize("name", ["gateway", "kvmanager", "executor"])
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


def memory_map(**changes: int) -> kvmanager_pb2.GetMemoryMapResponse:
    blocks = [kvmanager_pb2.Block(cached=index < 2) for index in range(5)]
    state = {"num_blocks": 5, "free_blocks": 3, "cached_blocks": 2, **changes}
    return kvmanager_pb2.GetMemoryMapResponse(blocks=blocks, **state)


def test_blocks_that_are_all_there_pass() -> None:
    assert check_idle(memory_map()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"free_blocks": 2},
        {"referenced_blocks": 1, "free_blocks": 2},
        {"running_requests": 1},
        {"waiting_requests": 1},
        {"cached_blocks": 1, "free_blocks": 4},
    ],
    ids=str,
)
def test_what_is_left_over_is_found(changes: dict[str, int]) -> None:
    assert check_idle(memory_map(**changes))


def test_a_reference_that_nobody_counts_is_found() -> None:
    memory = memory_map()
    memory.blocks[3].reference_count = 1
    assert check_idle(memory)
