"""Plans for decodes that stay where they are, interpreted."""

from __future__ import annotations

import pytest
import torch

from executor.attention import AttentionParams, StepLayout
from executor.attention.triton.backend import TritonAttention
from tests.executor.triton.attention_cases import CPU, Case, Step

_ROWS = 4
_PARAMS = AttentionParams(0.25, window=400)


def _plan(max_context):
    backend = TritonAttention()
    case = Case((), kv_heads=1)
    backend.block_layout(case.model, case.block_size, torch.float32)
    return backend.decode_plan(_ROWS, max_context, case.block_size, CPU)


def _run(plan, contexts, rng):
    """One step with so many of the plan's rows."""
    step = Step(Case(tuple((1, length) for length in contexts), kv_heads=1, params=_PARAMS), rng)
    given = len(contexts)
    plan.fill(step.layout)
    keys, values = torch.full((2, _ROWS, 1, 32), torch.nan)
    queries = torch.randn(_ROWS, 2, 32)
    keys[:given], values[:given], queries[:given] = step.keys[:given], step.values[:given], step.queries
    before = step.cache.keys.clone()
    plan.write(step.cache, keys, values)
    assert ((before != step.cache.keys) & ~step.cache.keys.isnan()).any(-1).sum() == given
    result = plan.attend(step.cache, queries, _PARAMS)
    assert result.isfinite().all()
    if given:
        step.close(result[:given])


@pytest.mark.parametrize("max_context", [100, 700])
def test_takes_one_step_after_another(max_context, rng):
    """With and without splits; rows that are not given are written nowhere."""
    plan = _plan(max_context)
    for contexts in ((max_context, 16), (), (17, 1, 64, max_context - 9), (3,)):
        _run(plan, contexts, rng)


def test_tensors_stay_where_they_are(rng):
    plan = _plan(700)
    tensors = [plan._slots, plan._part.work.tiles, plan._part.work.block_ids, plan._scratch.parts]
    addresses = [tensor.data_ptr() for tensor in tensors]
    step = Step(Case(((1, 33), (1, 700)), kv_heads=1), rng)
    plan.fill(step.layout)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert plan._slots.tolist()[2:] == [-1, -1]


@pytest.mark.parametrize(
    "layout",
    [
        StepLayout([1] * 5, [1] * 5, [], 16),
        StepLayout([2], [5], [], 16),
        StepLayout([1], [101], [], 16),
        StepLayout([1], [5], [], 32),
    ],
)
def test_refuses_what_does_not_fit(layout):
    with pytest.raises(ValueError, match=r"fit|at most 100 tokens"):
        _plan(100).fill(layout)
