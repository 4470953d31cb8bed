"""Steps whose sequences begin alike: what they share is read once for all, and nobody can tell from the results."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from executor.attention import StepLayout
from executor.attention.triton import prefix_work, split_work
from executor.attention.triton.backend import TritonAttention
from tests.executor.triton.attention_cases import CPU, Case, Step, score_forms

NEVER = 10**9


class SharingStep(Step):
    """A step in which rows share blocks.

    Args:
        groups: rows, and how many blocks they share.
    """

    def __init__(self, case, rng, groups):
        super().__init__(case, rng)
        tables = [table.copy() for table in self.layout.block_tables]
        self.layout = replace(self.layout, block_tables=tables)
        for (first, *others), num_blocks in groups:
            shared = tables[first][:num_blocks]
            for row in others:
                for memory in (self.cache.keys, self.cache.values):
                    memory[np.setdiff1d(tables[row][:num_blocks], shared)] = math.nan
                tables[row][:num_blocks] = shared
                tokens = slice(num_blocks * case.block_size)
                self.contexts[row][:, tokens] = self.contexts[first][:, tokens]
        self._store_past()

    def attend(self):
        plan = self.backend.plan(self.layout, CPU)
        plan.write(self.cache, self.keys, self.values)
        return plan.attend(self.cache, self.queries, self.case.params)


@pytest.fixture
def launches(monkeypatch):
    """Number of items of each launch of the shared-prefix kernel."""
    counts = []
    original = split_work.attend_prefixes

    def counted(items, *arguments):
        counts.append(len(items))
        original(items, *arguments)

    monkeypatch.setattr(split_work, "attend_prefixes", counted)
    return counts


@pytest.fixture
def eager(monkeypatch):
    """However little is saved is worth a launch."""
    monkeypatch.setattr(prefix_work, "LAUNCH_TOKENS", 0)


def _decodes(rng, count, tokens, spread=20):
    """Rows of so many tokens and some."""
    return tuple((1, int(tokens + extra)) for extra in rng.integers(1, spread, count))


def test_a_long_prompt_of_many(rng, launches):
    step = SharingStep(Case(_decodes(rng, 8, 1024), kv_heads=1), rng, [(range(8), 64)])
    step.close(step.attend())
    assert launches


def test_little_that_is_shared_is_read_by_each(rng, launches):
    step = SharingStep(Case(_decodes(rng, 8, 128), kv_heads=1), rng, [(range(8), 8)])
    step.close(step.attend())
    assert not launches


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_groups_anywhere_in_a_step_with_chunks_of_prompts(rng, launches, dtype):
    rows = list(_decodes(rng, 11, 128))
    rows[3], rows[6] = (21, 150), (2, 2)
    step = SharingStep(Case(tuple(rows), dtype=dtype), rng, [((0, 2, 5, 10), 8), ((1, 4, 7, 8), 6)])
    step.close(step.attend())
    assert launches == [2]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("params", score_forms(4), ids=["window", "soft cap", "alibi", "all"])
def test_what_scores_go_through(rng, launches, params):
    step = SharingStep(Case(_decodes(rng, 5, 128, 40), params=params), rng, [(range(5), 8)])
    step.close(step.attend())
    assert launches


@pytest.mark.usefixtures("eager")
def test_copy_on_write_has_changed_the_last_shared_block(rng, launches):
    """The rows' blocks are full to the last but one; one of them has a copy of that."""
    step = SharingStep(Case(((1, 130),) * 6), rng, [(range(6), 7), (range(5), 8)])
    step.close(step.attend())
    assert launches


@pytest.mark.usefixtures("eager")
def test_identical_tables(rng, launches):
    """As of samples of one prompt whose first new token is computed: each writes to a block of its own."""
    step = SharingStep(Case(((1, 129),) * 6), rng, [(range(6), 8)])
    step.close(step.attend())
    assert launches


@pytest.mark.usefixtures("eager")
def test_the_same_as_each_for_itself(rng, monkeypatch):
    case = Case((*_decodes(rng, 6, 256), (1, 30)), kv_heads=1, group=3, head_dim=64, dtype=torch.float16)
    step = SharingStep(case, rng, [(range(6), 16)])
    together = step.attend()
    monkeypatch.setattr(prefix_work, "LAUNCH_TOKENS", NEVER)
    torch.testing.assert_close(together, step.attend(), atol=2e-3, rtol=2e-3)


@pytest.mark.usefixtures("eager")
def test_keys_in_8_bits(rng, launches):
    case = Case(_decodes(rng, 5, 128), dtype=torch.float16, kv_dtype=torch.float8_e4m3fn)
    step = SharingStep(case, rng, [(range(5), 8)])
    step.close(step.attend())
    assert launches


@pytest.mark.usefixtures("eager")
def test_layers_with_and_without_a_window(rng):
    """The same plan serves both."""
    case = Case(_decodes(rng, 5, 128), kv_heads=1)
    step = SharingStep(case, rng, [(range(5), 8)])
    plan = step.backend.plan(step.layout, CPU)
    plan.write(step.cache, step.keys, step.values)
    for window in (0, 30, 0):
        step.case = replace(case, params=replace(case.params, window=window))
        step.close(plan.attend(step.cache, step.queries, step.case.params))


class PlannedSteps:
    """One plan for graphs after another step."""

    def __init__(self, num_rows=8):
        self.num_rows = num_rows
        case = Case((), kv_heads=1)
        backend = TritonAttention()
        backend.block_layout(case.model, case.block_size, torch.float32)
        self.plan = backend.shared_prefix_plan(num_rows, 400, case.block_size, CPU)

    def check(self, step, filled):
        given = len(step.case.rows)
        assert self.plan.try_fill(step.layout) == filled
        if not filled:
            self.plan.fill(step.layout)
        keys, values = torch.full((2, self.num_rows, 1, 32), math.nan)
        queries = torch.randn(self.num_rows, 2, 32)
        keys[:given], values[:given], queries[:given] = step.keys, step.values, step.queries
        self.plan.write(step.cache, keys, values)
        result = self.plan.attend(step.cache, queries, step.case.params)
        assert result.isfinite().all()
        step.close(result[:given])


@pytest.mark.usefixtures("eager")
def test_a_plan_for_graphs_takes_one_step_after_another(rng):
    """Groups come and go, and leave nothing behind."""
    steps = PlannedSteps()
    case = Case(_decodes(rng, 8, 280), kv_heads=1)
    steps.check(SharingStep(case, rng, [(range(8), 17)]), filled=True)
    steps.check(SharingStep(case, rng, []), filled=False)
    steps.check(SharingStep(case, rng, [((7, 2, 3), 16), ((0, 5, 6, 4), 3)]), filled=True)
    steps.check(SharingStep(Case(_decodes(rng, 5, 200), kv_heads=1), rng, [((1, 4), 12)]), filled=True)


def test_a_plan_for_graphs_leaves_to_others_what_shares_little(rng):
    steps = PlannedSteps()
    case = Case(_decodes(rng, 8, 100), kv_heads=1)
    steps.check(SharingStep(case, rng, [(range(8), 5)]), filled=False)
    assert not steps.plan.try_fill(StepLayout([], [], [], case.block_size))


@pytest.mark.usefixtures("eager")
def test_float32_of_wide_heads_is_never_read_together(rng, launches):
    case = Case(_decodes(rng, 5, 128), kv_heads=1, group=1, head_dim=136)
    step = SharingStep(case, rng, [(range(5), 8)])
    step.close(step.attend())
    assert not launches
    assert step.backend.shared_prefix_plan(8, 400, 16, CPU) is None
