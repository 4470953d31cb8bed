"""How many blocks a GPU has memory for, beside the weights and the largest step."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from executor.errors import SettingsError
from executor.loaded_model import LoadedModel
from executor.memory.block_mover import staging_bytes
from executor.memory.device_memory import DeviceMemory
from executor.memory.memory_budget import readable
from executor.memory.out_of_memory import refused_without_memory
from executor.memory.worst_step import NUM_BLOCKS, StepSize, run_largest_decode, run_worst_steps

_log = logging.getLogger(__name__)

GRAPH_BYTES = 16 << 20
"""Estimate of what a captured CUDA graph takes for itself, beside its block tables: the driver's copy of its nodes and
their arguments, and what its attention merges. All graphs share the rest, which is what the largest decode step takes.
"""

_BLOCK_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a GPU's memory is taken by before there are blocks, in bytes.

    Attributes:
        total: all there is.
        weights: the model's parameters.
        others: whatever else is held already: the driver's part for this process, and other processes.
        step: what the largest step takes at its peak.
        graphs: kept for CUDA graphs, which are captured when the blocks are there.
        swaps: kept for what is on its way to the host's blocks or back.
    """

    total: int
    weights: int
    others: int
    step: int
    graphs: int
    swaps: int

    def left(self, utilization: float) -> int:
        """Bytes for blocks, if this share of the total may be used; negative where the rest takes more."""
        return int(self.total * utilization) - self.weights - self.others - self.step - self.graphs - self.swaps


def blocks_left(use: MemoryUse, utilization: float, bytes_per_block: int, size: StepSize) -> int:
    """Blocks that fit beside everything else.

    Raises:
        SettingsError: none does; with what takes how much, and what to lower.
    """
    num_blocks = use.left(utilization) // bytes_per_block
    if num_blocks < 1:
        raise SettingsError(
            f"gpu_memory_utilization {utilization:g} of {readable(use.total)} leaves no block of"
            f" {readable(bytes_per_block)} for keys and values: the weights take {readable(use.weights)}, what else is"
            f" on the GPU {readable(use.others)}, {size} {readable(use.step)}, CUDA graphs {readable(use.graphs)},"
            f" swaps {readable(use.swaps)}."
            " Lower max_batched_tokens, max_sequences or max_model_len, end what else runs on the GPU, or raise"
            " gpu_memory_utilization"
        )
    return num_blocks


def profiled_blocks(
    loaded: LoadedModel,
    memory: DeviceMemory,
    size: StepSize,
    utilization: float,
    *,
    samples: bool = True,
    swaps: bool = False,
) -> int:
    """Blocks that fit beside the weights and the largest step, computed to see what that takes; logs what it has found.

    Args:
        utilization: share of the device's memory that may be in use, by whomever.
        samples: whether this rank samples.
        swaps: whether there are to be blocks on the host.

    Raises:
        SettingsError: there is no memory for such a step, or for a block beside it.
    """
    use = measure_use(loaded, memory, size, samples=samples, swaps=swaps)
    num_blocks = blocks_left(use, utilization, loaded.layout.bytes_per_block, size)
    _log_use(use, utilization, num_blocks, loaded.layout.bytes_per_block)
    return num_blocks


def measure_use(
    loaded: LoadedModel, memory: DeviceMemory, size: StepSize, *, samples: bool = True, swaps: bool = False
) -> MemoryUse:
    """Computes the largest steps with a few blocks, and gives back what that took.

    Args:
        samples: whether this rank samples.
        swaps: whether there are to be blocks on the host.

    Raises:
        SettingsError: there is no memory for such a step.
    """
    memory.release()
    weights = memory.held()
    step, decode, kept = _peaks(loaded, memory, size, samples)
    # What the steps leave behind (workspaces, compiled kernels) is there from now on, and no part of their peaks.
    others = memory.total() - memory.free() - weights
    num_graphs = loaded.num_graphs(size.max_rows)
    graphs = max(0, decode - kept) + own_bytes(num_graphs, size, loaded.block_size) if num_graphs else 0
    staging = staging_bytes(loaded.layout.bytes_per_block) if swaps else 0
    return MemoryUse(memory.total(), weights, max(0, others), max(0, step - kept), graphs, staging)


def own_bytes(num_graphs: int, size: StepSize, block_size: int) -> int:
    """What so many graphs, of batches from small ones up to the largest in even steps, take each for itself."""
    rows = num_graphs * (size.max_rows + 1) // 2
    return num_graphs * GRAPH_BYTES + rows * -(-size.max_context // block_size) * _BLOCK_ID_BYTES


def _peaks(loaded: LoadedModel, memory: DeviceMemory, size: StepSize, samples: bool) -> tuple[int, int, int]:
    """The most that was held in the largest step and in the largest decode step, without blocks; and afterwards."""
    with refused_without_memory(
        f"{size} does not fit beside the weights, {readable(memory.free())} of {readable(memory.total())} are free;"
        " lower max_batched_tokens, max_sequences or max_model_len"
    ):
        step, decode = _run(loaded, memory, size, samples)
    memory.release()
    return step, decode, memory.held()


def _run(loaded: LoadedModel, memory: DeviceMemory, size: StepSize, samples: bool) -> tuple[int, int]:
    arena = loaded.arena(NUM_BLOCKS)
    runner = loaded.runner(arena)
    memory.start_peak()
    run_worst_steps(runner, loaded.sampler() if samples else None, size)
    step = memory.peak() - arena.data.nbytes
    memory.release()
    memory.start_peak()
    run_largest_decode(runner, size)
    return step, memory.peak() - arena.data.nbytes


def _log_use(use: MemoryUse, utilization: float, num_blocks: int, bytes_per_block: int) -> None:
    """One line with what takes how many bytes."""
    extra = {
        "gpu_bytes": use.total,
        "utilization": utilization,
        "weight_bytes": use.weights,
        "other_bytes": use.others,
        "step_bytes": use.step,
        "graph_bytes": use.graphs,
        "swap_bytes": use.swaps,
        "kv_bytes": num_blocks * bytes_per_block,
        "blocks": num_blocks,
    }
    _log.info("GPU memory is shared out", extra=extra)
