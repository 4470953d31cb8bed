"""Decode steps that are recorded and done again give what they give when they are computed one by one.

On a CPU, a graph is stood in for by the operations that a function has torch do, with the tensors and numbers that it
did them with: as in a CUDA graph, nothing that the host decides is decided again.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from executor.attention import DecodePlan, ReferenceAttention, StepLayout
from executor.errors import SettingsError
from executor.model_runner import Row
from executor.sequences import PendingToken, SequenceState
from executor.step import SamplingParams
from executor.torch_decoder.decode_graphs import batch_sizes, sharing_sizes
from executor.torch_decoder.torch_runner import TorchRunner
from tests.executor.test_pipelining import DeferringSampler, Script

_GREEDY = SamplingParams(temperature=0)
_CPU = torch.device("cpu")


class Recording(TorchDispatchMode):
    """Writes down each operation."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.calls.append((operation, args, kwargs or {}, result))
        return result

    def replay(self):
        """Does them again; results of earlier ones take the place of those that were recorded."""
        again = {}

        def now(value):
            return again.get(id(value), value) if isinstance(value, torch.Tensor) else value

        for operation, args, kwargs, recorded in self.calls:
            result = operation(*tree_map(now, args), **tree_map(now, kwargs))
            again |= {id(old): new for old, new in zip(tree_leaves(recorded), tree_leaves(result), strict=True)}


class Recordings:
    """Graphs of recorded operations.

    Attributes:
        num_replays: how often one was done again.
    """

    def __init__(self):
        self.num_replays = 0

    def capture(self, function):
        # As for CUDA: once for what happens only once.
        function()
        with Recording() as recording:
            function()

        def replay():
            self.num_replays += 1
            recording.replay()

        return replay


class StaticAttention(ReferenceAttention):
    """The reference, with plans for decodes that take no decision on the host; the last block is for rows of nobody."""

    def decode_plan(self, num_rows, max_context, block_size, device):
        return StaticPlan(num_rows, max_context, block_size)


class StaticPlan(DecodePlan):
    def __init__(self, num_rows, max_context, block_size):
        self.block_size = block_size
        self.written = torch.zeros(num_rows, dtype=torch.int64)
        self.slots = torch.zeros(num_rows, max_context, dtype=torch.int64)
        self.lengths = torch.ones(num_rows, dtype=torch.int64)
        self.fill(StepLayout([], [], [], block_size))

    def fill(self, layout):
        self.written.fill_(-1)
        self.slots.zero_()
        self.lengths.fill_(1)
        for row, (length, table) in enumerate(zip(layout.context_lengths, layout.block_tables, strict=True)):
            positions = np.arange(length)
            slots = table[positions // self.block_size] * self.block_size + positions % self.block_size
            self.slots[row, :length] = torch.from_numpy(slots)
            self.written[row] = int(slots[-1])
            self.lengths[row] = length

    def write(self, cache, keys, values):
        slots = torch.where(self.written < 0, len(cache.keys) - 1, self.written)
        cache.keys.index_copy_(0, slots, keys)
        cache.values.index_copy_(0, slots, values)

    def attend(self, cache, queries, params):
        rows, heads, head_dim = queries.shape
        keys, values = (memory[self.slots].transpose(1, 2) for memory in (cache.keys, cache.values))
        visible = torch.arange(self.slots.shape[1])[None] < self.lengths[:, None]
        mine = queries.view(rows, keys.shape[1], -1, head_dim)
        attended = F.scaled_dot_product_attention(
            mine, keys, values, attn_mask=visible[:, None, None], scale=params.scale
        )
        return attended.reshape(rows, heads, head_dim)


class SharingAttention(StaticAttention):
    """Has a plan for rows that all begin with the same block.

    Attributes:
        taken: sizes of the plans that have taken rows.
    """

    def __init__(self):
        self.taken = []

    def shared_prefix_plan(self, num_rows, max_context, block_size, device):
        return SharingPlan(num_rows, max_context, block_size, self.taken)


class SharingPlan(StaticPlan):
    def __init__(self, num_rows, max_context, block_size, taken):
        super().__init__(num_rows, max_context, block_size)
        self.taken = taken

    def try_fill(self, layout):
        if len({int(table[0]) for table in layout.block_tables}) > 1:
            return False
        self.taken.append(len(self.written))
        return super().try_fill(layout)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (48, [1, 2, 4, 8, 16, 24, 32, 40, 48]),
    ],
)
def test_sizes_of_batches(largest, sizes):
    assert batch_sizes(largest) == sizes


def test_sizes_of_batches_that_share_something():
    assert sharing_sizes(4) == []
    assert sharing_sizes(72) == [8, 16, 32, 64, 72]


_CONFIGS = {
    "llama": lambda base: base(),
    "llama with dynamic frequencies": lambda base: base(
        max_position_embeddings=24, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "opt": lambda _: transformers.OPTConfig(
        vocab_size=96, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=16
    ),
    "gpt2": lambda _: transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4),
}


def _torch_runner(executor):
    """Below the one that divides steps for which there is no memory."""
    return executor._runner._runner


@pytest.fixture
def runners(load, llama, save_model, llama_config):
    """Over memory of their own, the same to begin with: one as it is, and one with graphs of up to so many decodes."""

    def make(largest, family="llama", attention=None):
        folder = llama[0] if family == "llama" else save_model(_CONFIGS[family](llama_config))[0]
        executor = load(folder, decoder="torch", block_size=4)
        plain = _torch_runner(executor)
        plain.arena.data.copy_(torch.randn(plain.arena.data.shape))
        other = _torch_runner(load(folder, decoder="torch", block_size=4))
        other.arena.data.copy_(plain.arena.data)
        recordings, told = Recordings(), []
        with_graphs = TorchRunner(other.decoder, other.arena, attention or StaticAttention(), _CPU, recordings)
        with_graphs.prepare_decodes(largest, 90, lambda *progress: told.append(progress))
        count = len(batch_sizes(largest)) + (len(sharing_sizes(largest)) if attention else 0)
        assert told == [("Capturing CUDA graphs", done, count) for done in range(len(told))]
        assert told[-1][1:] == (len(told) - 1,) * 2
        return plain, with_graphs, recordings

    return make


def _sequence(rng, free, *, computed=None, length=None):
    """Some sequence whose last token is to be computed."""
    length = length or rng.randint(1, 80)
    tokens = array("q", rng.choices(range(96), k=length))
    table = array("q", [free.pop() for _ in range(-(-length // 4))])
    # A longer prompt than there are tokens is none, but counts in dynamic frequencies.
    prompt_length = rng.randint(1, 80)
    return SequenceState(0, tokens, prompt_length, length - 1 if computed is None else computed, table, 0, _GREEDY)


@pytest.mark.parametrize("family", _CONFIGS)
@torch.inference_mode()
def test_recorded_steps_give_the_logits_of_others(runners, family):
    """Of batches of all sizes, after one another, over memory full of arbitrary keys and values."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    plain, with_graphs, recordings = runners(5, family)
    for number, size in enumerate([1, 2, 3, 4, 5, 3, 5, 1, 2]):
        free = list(range(plain.arena.num_blocks - 1))
        rng.shuffle(free)
        rows = [Row(_sequence(rng, free), 1) for _ in range(size)]
        expected = plain.run(rows)
        assert torch.allclose(with_graphs.run(rows), expected, atol=1e-4)
        assert torch.allclose(with_graphs.arena.blocks[:-1], plain.arena.blocks[:-1], atol=1e-4)
        assert recordings.num_replays == number + 1


@torch.inference_mode()
def test_rows_that_share_what_they_begin_with_have_graphs_of_their_own(runners):
    """In the smallest that is large enough; those that share nothing are computed as ever."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng, attention = random.Random(seed), SharingAttention()
    plain, with_graphs, recordings = runners(17, attention=attention)
    for number, (size, shares) in enumerate([(3, True), (9, True), (3, False), (17, True), (17, False), (8, True)]):
        free = list(range(plain.arena.num_blocks - 1))
        rng.shuffle(free)
        rows = [Row(_sequence(rng, free, length=rng.randint(5, 30)), 1) for _ in range(size)]
        if shares:
            for row in rows:
                row.sequence.block_table[0] = free[0]
        assert torch.allclose(with_graphs.run(rows), plain.run(rows), atol=1e-4)
        assert recordings.num_replays == number + 1
    assert attention.taken == [8, 16, 17, 8]


@torch.inference_mode()
def test_pending_tokens_are_taken_from_the_device(runners):
    rng = random.Random(5)
    plain, with_graphs, recordings = runners(5)
    for pending in ([0, 2], [1], [0, 1, 2, 3, 4]):
        free = list(range(plain.arena.num_blocks - 1))
        rows = [Row(_sequence(rng, free), 1) for _ in range(5)]
        expected = plain.run(rows)
        tokens = torch.tensor([row.sequence.token_ids[-1] for row in reversed(rows)])
        for place in pending:
            sequence = rows[place].sequence
            sequence.token_ids[-1] = 0
            sequence.pending = PendingToken(tokens, 4 - place, len(sequence.token_ids) - 1, [sequence])
        assert torch.allclose(with_graphs.run(rows), expected, atol=1e-4)
    assert recordings.num_replays == 3


@torch.inference_mode()
def test_what_there_is_no_graph_for_is_computed_as_ever(runners):
    """More rows than the largest graph has, prompts, and tokens in the middle of one."""
    rng = random.Random(6)
    plain, with_graphs, recordings = runners(3)
    free = list(range(plain.arena.num_blocks - 1))
    decodes = [Row(_sequence(rng, free, length=30), 1) for _ in range(4)]
    prompt = Row(_sequence(rng, free, computed=0, length=9), 9)
    middle = Row(_sequence(rng, free, computed=4, length=9), 1)
    for rows in (decodes, [*decodes[:2], prompt], [decodes[0], middle], [middle]):
        assert torch.allclose(with_graphs.run(rows), plain.run(rows), atol=1e-4)
    assert recordings.num_replays == 0
    assert torch.allclose(with_graphs.run(decodes[:1]), plain.run(decodes[:1]), atol=1e-4)
    assert recordings.num_replays == 1


def test_whole_generations(load, llama):
    """Everything at once: batches that grow, shrink, fork and are preempted, two steps under way."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    settings = {"block_size": 4, "kv_memory": "4MiB", "max_model_len": 80, "decoder": "torch"}
    plain, executor = load(llama[0], **settings), load(llama[0], **settings)
    # The last block is for rows of nobody.
    plain.info = executor.info = replace(plain.info, num_blocks=plain.info.num_blocks - 1)
    expected = Script(plain, seed, depth=1).run(100)
    runner, recordings = _torch_runner(executor), Recordings()
    executor._runner = TorchRunner(runner.decoder, runner.arena, StaticAttention(), _CPU, recordings)
    executor._runner.prepare_decodes(8, 80, lambda *_: None)
    executor._sampler = DeferringSampler()
    found = Script(executor, seed, depth=2).run(100)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert recordings.num_replays > 5


def test_no_memory_for_graphs_is_said_at_start(load, llama, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TorchRunner, "prepare_decodes", out_of_memory)
    with pytest.raises(SettingsError, match=r"cuda_graphs: .* lower max_sequences, .* or turn cuda_graphs off"):
        load(llama[0], decoder="torch")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_computes_the_same_with_graphs_and_two_steps_under_way(load, save_model, llama_config):
    folder, _ = save_model(llama_config(hidden_size=64, num_attention_heads=2, num_key_value_heads=1))
    seed = random.randrange(1 << 30)
    print("seed", seed)
    settings = {"block_size": 16, "kv_memory": "64MiB", "max_model_len": 80, "device": "cuda", "dtype": "float32"}
    expected = Script(load(folder, cuda_graphs=False, **settings), seed, depth=1).run(100)
    found = Script(load(folder, max_sequences=6, **settings), seed, depth=2).run(100)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
