"""What blocks get of a GPU's memory: the arithmetic, and the way to its numbers, on a GPU that is a stand-in."""

from __future__ import annotations

import logging
import weakref
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executor.errors import SettingsError
from executor.families import family_of
from executor.loaded_model import LoadedModel
from executor.loader import _num_blocks, load_executor
from executor.memory.block_mover import staging_bytes
from executor.memory.gpu_budget import GRAPH_BYTES, MemoryUse, blocks_left, measure_use, own_bytes, profiled_blocks
from executor.memory.worst_step import NUM_BLOCKS, StepSize
from executor.model_choice import load_model
from executor.model_runner import ModelRunner
from executor.progress import tell_nobody
from executor.settings import ExecutorSettings
from executor.tensor_parallel import ALONE
from executor.weights import open_checkpoint
from services.config import ConfigError, ExecutorConfig

GIB, MIB = 1 << 30, 1 << 20
USE = MemoryUse(total=24 * GIB, weights=15 * GIB, others=GIB // 2, step=2 * GIB, graphs=GIB // 2, swaps=0)
SIZE = StepSize(max_tokens=512, max_rows=256, max_context=4096)


def test_blocks_get_what_is_left_of_the_share():
    assert USE.left(1.0) == 6 * GIB
    assert USE.left(0.75) == 0
    assert blocks_left(USE, 1.0, 2 * MIB, SIZE) == 3072
    assert blocks_left(replace(USE, others=3 * GIB // 2), 1.0, 2 * MIB, SIZE) == 2560
    assert blocks_left(replace(USE, swaps=GIB), 1.0, 2 * MIB, SIZE) == 2560
    assert blocks_left(USE, 1.0, 6 * GIB, SIZE) == 1


@pytest.mark.parametrize(("utilization", "bytes_per_block"), [(0.75, MIB), (0.5, MIB), (1.0, 6 * GIB + 1)])
def test_without_room_for_a_block_it_is_said_what_takes_how_much_and_what_to_lower(utilization, bytes_per_block):
    with pytest.raises(SettingsError) as refusal:
        blocks_left(USE, utilization, bytes_per_block, SIZE)
    message = str(refusal.value)
    for part in (f"gpu_memory_utilization {utilization:g} of 24.00 GiB", "weights take 15.00 GiB", "GPU 512.00 MiB"):
        assert part in message
    assert "a step of 512 tokens and 256 sequences 2.00 GiB, CUDA graphs 512.00 MiB" in message
    assert "Lower max_batched_tokens, max_sequences or max_model_len" in message


class StandIn:
    """A GPU's memory. What is held comes and goes with what the model below takes."""

    def __init__(self, total: int, weights: int, others: int) -> None:
        self._total, self._weights, self._others = total, weights, others
        self._taken = self._cached = self._peak = 0

    @contextmanager
    def taken(self, num_bytes: int):
        if self._held() + num_bytes > self._total - self._others:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much")
        self._taken += num_bytes
        self._cached = max(0, self._cached - num_bytes)
        self._peak = max(self._peak, self.held())
        yield
        self._taken -= num_bytes
        self._cached += num_bytes

    def keep(self, num_bytes: int) -> None:
        """Somebody else, or the driver, takes it for good."""
        self._others += num_bytes

    def _held(self) -> int:
        return self._weights + self._taken

    def total(self) -> int:
        return self._total

    def free(self) -> int:
        return self._total - self._others - self.held()

    def held(self) -> int:
        return self._held() + self._cached

    def peak(self) -> int:
        return self._peak

    def start_peak(self) -> None:
        self._peak = self.held()

    def release(self) -> None:
        self._cached = 0


class Measured(ModelRunner):
    """A real runner whose steps take memory of the stand-in: so much a token, and so much a row of logits."""

    def __init__(self, runner: ModelRunner, memory: StandIn, shapes: list[list[tuple[int, int]]]) -> None:
        self._runner, self._memory, self._shapes = runner, memory, shapes
        self.arena, self.device, self.kernels = runner.arena, runner.device, runner.kernels

    def run(self, rows, *, every_token=False):
        self._shapes.append([(row.num_tokens, row.end) for row in rows])
        for row in rows:
            assert len(row.sequence.block_table) * self.arena.block_size >= row.end
            assert max(row.sequence.block_table) < self.arena.num_blocks
        sampling = sum(row.reaches_last for row in rows)
        with self._memory.taken(MIB * sum(row.num_tokens for row in rows) + 3 * MIB * sampling):
            return self._runner.run(rows)


class Sampling:
    """Takes twice the logits again, and sees whether everything that can be asked for is."""

    def __init__(self, sampler, memory):
        self._sampler, self._memory = sampler, memory

    def sample(self, logits, rows, sequences):
        sampling = sequences[0].sampling
        assert sampling.temperature > 0
        assert sampling.top_p < 1
        assert sampling.penalties
        assert sampling.logprobs
        with self._memory.taken(10 * MIB * len(rows)):
            return self._sampler.sample(logits, rows, sequences)

    def candidates(self, logits, rows, sequences):
        return self._sampler.candidates(logits, rows, sequences)


class Model(LoadedModel):
    """A real model on the CPU, on the stand-in."""

    def __init__(self, loaded: LoadedModel, memory: StandIn, num_graphs: int = 0) -> None:
        self._loaded, self._memory, self._num_graphs = loaded, memory, num_graphs
        self.layout, self.block_size, self.kernels = loaded.layout, loaded.block_size, loaded.kernels
        self.shapes: list[list[tuple[int, int]]] = []

    def arena(self, num_blocks):
        assert num_blocks == NUM_BLOCKS
        arena = self._loaded.arena(num_blocks)
        self._memory._taken += arena.data.nbytes
        self._memory._peak = max(self._memory._peak, self._memory.held())
        weakref.finalize(arena, self._free, arena.data.nbytes)
        return arena

    def _free(self, num_bytes):
        self._memory._taken -= num_bytes

    def runner(self, arena):
        return Measured(self._loaded.runner(arena), self._memory, self.shapes)

    def sampler(self):
        return Sampling(self._loaded.sampler(), self._memory)

    def num_graphs(self, max_sequences):
        return self._num_graphs


@pytest.fixture
def loaded(llama):
    checkpoint = open_checkpoint(llama[0])
    family = family_of(checkpoint.config)
    settings = ExecutorSettings(llama[0], decoder="torch", attention_backend="reference")
    cpu = torch.device("cpu")
    return load_model(settings, checkpoint, family, family.describe(checkpoint.config), cpu, tell_nobody)[0]


SMALL = StepSize(max_tokens=40, max_rows=10, max_context=100)


def test_the_largest_step_is_computed_and_measured(loaded):
    memory = StandIn(total=4 * GIB, weights=GIB, others=100 * MIB)
    model = Model(loaded, memory)
    use = measure_use(model, memory, SMALL)
    chunk, sampled, decode = model.shapes
    assert chunk == [(40, 100)], "a chunk at the end of the longest prompt"
    assert sampled == [(4, 100)] * 10, "all sequences, all of which sample"
    assert decode == [(1, 100)] * 10
    # 40 tokens and the logits of 10 rows, or 10 rows' sampling.
    assert use == MemoryUse(4 * GIB, weights=GIB, others=100 * MIB, step=100 * MIB, graphs=0, swaps=0)
    assert memory.held() == GIB, "something of it is still there"


def test_a_long_budget_is_several_whole_prompts(loaded):
    memory = StandIn(total=4 * GIB, weights=GIB, others=0)
    model = Model(loaded, memory)
    measure_use(model, memory, StepSize(max_tokens=250, max_rows=10, max_context=100))
    assert model.shapes[0] == [(100, 100)] * 3


def test_what_is_on_its_way_to_the_host_has_its_memory(loaded):
    memory = StandIn(total=4 * GIB, weights=GIB, others=0)
    use = measure_use(Model(loaded, memory), memory, SMALL, swaps=True)
    assert use.swaps == staging_bytes(loaded.layout.bytes_per_block)


def test_what_the_steps_leave_behind_counts_once(loaded):
    memory = StandIn(total=4 * GIB, weights=GIB, others=0)
    model = Model(loaded, memory)
    sampler = model.sampler()

    class Keeping:
        candidates = sampler.candidates

        def sample(self, *args):
            memory.keep(50 * MIB)
            return sampler.sample(*args)

    model.sampler = Keeping
    use = measure_use(model, memory, SMALL)
    assert (use.others, use.step) == (50 * MIB, 100 * MIB)


def test_graphs_are_as_large_as_the_largest_decode_step_and_what_each_takes_itself(loaded):
    memory = StandIn(total=4 * GIB, weights=GIB, others=0)
    use = measure_use(Model(loaded, memory, num_graphs=3), memory, SMALL)
    tables = (3 * 11 // 2) * 7 * 4
    assert use.graphs == 10 * (1 + 3) * MIB + 3 * GRAPH_BYTES + tables


def test_the_block_tables_of_graphs_grow_with_the_context():
    sizes = [1, 2, 4, *range(8, 257, 8)]
    long = StepSize(max_tokens=512, max_rows=256, max_context=1 << 17)
    tables = own_bytes(len(sizes), long, block_size=16) - len(sizes) * GRAPH_BYTES
    assert tables == pytest.approx(sum(sizes) * (1 << 13) * 4, rel=0.1)


def test_a_rank_that_does_not_sample_has_no_sampler(loaded):
    memory = StandIn(total=4 * GIB, weights=GIB, others=0)
    assert measure_use(Model(loaded, memory), memory, SMALL, samples=False).step == 70 * MIB


@pytest.mark.parametrize(("asked", "utilization"), [(None, 0.9), (0.5, 0.5)])
def test_on_a_gpu_auto_is_what_the_share_leaves(loaded, monkeypatch, asked, utilization):
    memory = StandIn(total=4 * GIB, weights=GIB, others=0)
    monkeypatch.setattr("executor.loader.CudaMemory", lambda device: memory)
    model = Model(loaded, memory)
    settings = ExecutorSettings(Path("m"), gpu_memory_utilization=asked, max_batched_tokens=40, max_sequences=10)
    num_blocks = _num_blocks(settings, model, torch.device("cuda"), 100, ALONE)
    assert num_blocks == (int(4 * GIB * utilization) - GIB - 100 * MIB) // loaded.layout.bytes_per_block
    assert model.shapes[0] == [(40, 100)]


def test_what_was_found_is_one_line_in_the_log(loaded, caplog):
    caplog.set_level(logging.INFO, logger="executor")
    memory = StandIn(total=2 * GIB, weights=GIB, others=24 * MIB)
    block = loaded.layout.bytes_per_block
    num_blocks = profiled_blocks(Model(loaded, memory), memory, SMALL, 0.75)
    assert num_blocks == (512 - 24 - 100) * MIB // block
    (record,) = caplog.records
    found = (record.gpu_bytes, record.weight_bytes, record.other_bytes, record.step_bytes, record.graph_bytes)
    assert found == (2 * GIB, GIB, 24 * MIB, 100 * MIB, 0)
    assert (record.blocks, record.kv_bytes, record.utilization) == (num_blocks, num_blocks * block, 0.75)


def test_a_step_that_does_not_fit_is_refused_at_start(loaded):
    memory = StandIn(total=GIB + 64 * MIB, weights=GIB, others=0)
    with pytest.raises(
        SettingsError, match=r"a step of 40 tokens and 10 sequences does not fit .* 64\.00 MiB of 1\.06 GiB"
    ):
        profiled_blocks(Model(loaded, memory), memory, SMALL, 0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu_memory_utilization": 0.9}, r"gpu_memory_utilization 0\.9: the device is cpu; kv_memory is for it"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be above 0 and at most 1, not 1.5"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization must be above 0"),
        ({"max_sequences": 0}, "max_sequences must be at least 1"),
        ({"max_batched_tokens": 16, "max_sequences": 17}, "max_sequences is 17; it must be at most max_batched_tokens"),
    ],
)
def test_impossible_settings_are_named(llama, changes, message):
    with pytest.raises(SettingsError, match=message):
        load_executor(ExecutorSettings(llama[0], device="cpu", **changes))


def test_auto_is_the_same_as_ever_on_a_cpu(llama):
    info = load_executor(
        ExecutorSettings(llama[0], device="cpu", decoder="torch", max_batched_tokens=300, max_sequences=30)
    ).info
    assert info.num_blocks == (512 << 20) // info.bytes_per_block
    assert (info.max_batched_tokens, info.max_sequences) == (300, 30)


def test_the_configuration_takes_what_the_executor_takes():
    assert ExecutorConfig(model="m").kv_memory == "auto"
    assert ExecutorConfig(model="m").gpu_memory_utilization is None
    assert ExecutorConfig(model="m", gpu_memory_utilization=0.8).gpu_memory_utilization == 0.8
    with pytest.raises(ConfigError, match="gpu_memory_utilization: must be at most 1"):
        ExecutorConfig(model="m", gpu_memory_utilization=1.1)
