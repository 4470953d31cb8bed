"""The attention kernel, interpreted, against attention written out token by token in float64.

Whatever a row must not read holds NaN: slots past its end, and blocks of nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from executor.arena import BlockArena
from executor.attention import AttentionParams, StepLayout
from executor.attention.triton.backend import TritonAttention
from executor.attention.triton.plans import StepPlan
from executor.families.llama import describe

_CPU = torch.device("cpu")
_SPARE_BLOCKS = 3
_PLAIN = AttentionParams(0.25)


@dataclass(frozen=True)
class Case:
    """Rows of a step, (new tokens, context length) each, and the attention over them."""

    rows: tuple[tuple[int, int], ...]
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    params: AttentionParams = _PLAIN

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


class Problem:
    """Random tokens of a case in an arena whose other slots hold NaN, and the exact result."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        self.backend = TritonAttention()
        kv_dtype = case.kv_dtype or case.dtype
        blocks = self.backend.block_layout(_model(case), case.block_size, kv_dtype)
        self.layout = _layout(case, rng)
        arena = BlockArena(blocks, num_blocks=_num_blocks(case), block_size=case.block_size, device=_CPU)
        arena.data.view(torch.uint8).fill_(0xFF)
        self.cache = self.backend.layer_caches(arena)[1]
        self.contexts = [torch.randn(2, length, case.kv_heads, case.head_dim).to(kv_dtype) for _, length in case.rows]
        self.queries = torch.randn(sum(self.layout.num_tokens), case.heads, case.head_dim).to(case.dtype)
        for row, (count, length) in enumerate(case.rows):
            for position in range(length - count):
                self._store(row, position)

    def new(self, which: int) -> torch.Tensor:
        """Keys (0) or values (1) of the new tokens."""
        rows = zip(self.contexts, self.layout.num_tokens, strict=True)
        return torch.cat([context[which, len(context[which]) - count :] for context, count in rows]).to(self.case.dtype)

    def expected(self) -> torch.Tensor:
        results, token = [], 0
        for (count, length), context in zip(self.case.rows, self.contexts, strict=True):
            for position in range(length - count, length):
                results.append(exact(self.queries[token], *context, position, self.case.params))
                token += 1
        return torch.stack(results)

    def _store(self, row: int, position: int) -> None:
        block = int(self.layout.block_tables[row][position // self.case.block_size])
        for memory, tokens in zip((self.cache.keys, self.cache.values), self.contexts[row], strict=True):
            memory[block, :, position % self.case.block_size] = tokens[position]


def exact(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, params: AttentionParams
) -> torch.Tensor:
    """One token's attention, [heads, head_dim]: `queries` [heads, head_dim] over all keys up to its position."""
    first = max(0, position - params.window + 1) if params.window else 0
    seen = slice(first, position + 1)
    group = len(queries) // keys.shape[1]
    result = torch.empty(queries.shape, dtype=torch.float64)
    for head, query in enumerate(queries.double()):
        scores = keys[seen, head // group].double() @ query * params.scale
        if params.soft_cap:
            scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
        if params.alibi_slopes:
            scores = scores + params.alibi_slopes[head] * (torch.arange(first, position + 1) - position)
        result[head] = torch.softmax(scores, dim=0) @ values[seen, head // group].double()
    return result


def _model(case: Case):
    return describe(
        {
            "vocab_size": 32,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": case.heads,
            "num_key_value_heads": case.kv_heads,
            "head_dim": case.head_dim,
        }
    )


def _num_blocks(case: Case) -> int:
    return sum(-(-length // case.block_size) for _, length in case.rows) + _SPARE_BLOCKS


def _layout(case: Case, rng: np.random.Generator) -> StepLayout:
    blocks = rng.permutation(_num_blocks(case)).astype(np.int64)
    tables = []
    for _, length in case.rows:
        count = -(-length // case.block_size)
        tables.append(blocks[:count])
        blocks = blocks[count:]
    return StepLayout([count for count, _ in case.rows], [length for _, length in case.rows], tables, case.block_size)


_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def _check(case: Case, rng: np.random.Generator) -> StepPlan:
    problem = Problem(case, rng)
    plan = problem.backend.plan(problem.layout, _CPU)
    plan.write(problem.cache, problem.new(0), problem.new(1))
    result = plan.attend(problem.cache, problem.queries, case.params)
    assert result.dtype == case.dtype
    torch.testing.assert_close(result.double(), problem.expected(), atol=_TOLERANCE[case.dtype], rtol=0)
    return plan


_MIXED = ((1, 33), (20, 20), (1, 2), (7, 45), (1, 90))


def _forms(heads: int) -> list[AttentionParams]:
    slopes = tuple(0.5 ** (1 + head) for head in range(heads))
    return [
        AttentionParams(0.25, window=9),
        AttentionParams(2.0, soft_cap=1.5),
        AttentionParams(0.25, alibi_slopes=slopes),
        AttentionParams(0.5, soft_cap=2.0, window=40, alibi_slopes=slopes),
    ]


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_every_size_of_blocks(block_size, rng):
    _check(Case(_MIXED, block_size=block_size), rng)


@pytest.mark.parametrize("form", range(4))
def test_what_scores_go_through(form, rng):
    _check(Case(_MIXED, params=_forms(4)[form]), rng)


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 3), (1, 4), (2, 8), (1, 20)])
def test_heads_that_share_keys(kv_heads, group, rng):
    _check(Case(((1, 40), (9, 30)), kv_heads=kv_heads, group=group, params=_forms(kv_heads * group)[2]), rng)


@pytest.mark.parametrize("head_dim", [40, 64, 80, 128, 256])
def test_every_size_of_heads(head_dim, rng):
    _check(Case(((1, 40), (9, 30)), head_dim=head_dim, params=AttentionParams(head_dim**-0.5)), rng)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, rng):
    _check(Case(_MIXED, dtype=dtype), rng)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_keys_and_values_of_8_bits(dtype, rng):
    _check(Case(_MIXED, dtype=dtype, kv_dtype=torch.float8_e4m3fn), rng)


def test_long_contexts_are_split(rng):
    plan = _check(Case(((1, 1500), (1, 700), (3, 600), (1, 5)), kv_heads=1, block_size=64), rng)
    assert all(part.num_splits > 1 for part in plan._parts)


def test_decodes_of_a_graph(rng):
    """The same plan again and again, with more and fewer rows."""
    plan = None
    for rows in (((1, 700), (1, 16)), (), ((1, 17), (1, 1), (1, 64), (1, 333)), ((1, 3),)):
        problem = Problem(Case(rows, block_size=32, kv_heads=1), rng)
        if plan is None:
            plan = problem.backend.decode_plan(4, 700, 32, _CPU)
        plan.fill(problem.layout)
        tokens = torch.full((2, 4, 1, 32), math.nan)
        queries = torch.randn(4, 2, 32)
        if rows:
            tokens[:, : len(rows)] = torch.stack([problem.new(0), problem.new(1)])
            queries[: len(rows)] = problem.queries
        before = problem.cache.keys.clone()
        plan.write(problem.cache, *tokens)
        result = plan.attend(problem.cache, queries, AttentionParams(0.25))
        assert result.isfinite().all()
        if rows:
            torch.testing.assert_close(result[: len(rows)].double(), problem.expected(), atol=1e-5, rtol=0)
        written = (before.isnan() & ~problem.cache.keys.isnan()).any(-1).sum()
        assert written == len(rows)
