"""Steps over random keys and values in blocks, and attention written out token by token in float64.

Whatever a row must not read holds NaN: slots past its end, tokens before its window, and blocks of nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executor.attention import AttentionParams, StepLayout
from executor.attention.triton.backend import TritonAttention
from executor.description import DecoderDescription
from executor.families.llama import describe
from executor.memory.arena import BlockArena

CPU = torch.device("cpu")
PLAIN = AttentionParams(0.25)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

_SPARE_BLOCKS = 2


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
    params: AttentionParams = PLAIN

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def model(self) -> DecoderDescription:
        return describe(
            {
                "vocab_size": 32,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
            }
        )


class Step:
    """A case with random queries, keys and values, and all but the new tokens' keys and values in blocks.

    Attributes:
        cache: of the second of two layers.
        keys, values, queries: of the new tokens.
    """

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        self.backend = TritonAttention()
        kv_dtype = case.kv_dtype or case.dtype
        counts = [-(-length // case.block_size) for _, length in case.rows]
        num_blocks = sum(counts) + _SPARE_BLOCKS
        blocks = rng.permutation(num_blocks).astype(np.int64)
        ends = np.cumsum(counts, dtype=int)
        # A table may be longer than its row's tokens need.
        tables = [blocks[end - count : end + 1] for count, end in zip(counts, ends, strict=True)]
        self.layout = StepLayout(
            [count for count, _ in case.rows], [length for _, length in case.rows], tables, case.block_size
        )
        arena = BlockArena(
            self.backend.block_layout(case.model, case.block_size, kv_dtype),
            num_blocks=num_blocks,
            block_size=case.block_size,
            device=CPU,
        )
        arena.data.view(torch.uint8).fill_(0xFF)
        self.cache = self.backend.layer_caches(arena)[1]
        self.contexts = [torch.randn(2, length, case.kv_heads, case.head_dim).to(kv_dtype) for _, length in case.rows]
        self.queries = torch.randn(sum(self.layout.num_tokens), case.heads, case.head_dim).to(case.dtype)
        nothing = torch.zeros(2, 0, case.kv_heads, case.head_dim)
        new = [context[:, length - count :] for context, (count, length) in zip(self.contexts, case.rows, strict=True)]
        self.keys, self.values = torch.cat([nothing, *(tokens.float() for tokens in new)], dim=1).to(case.dtype)
        self._store_past()

    def _store_past(self) -> None:
        size = self.case.block_size
        for (count, length), table, context in zip(
            self.case.rows, self.layout.block_tables, self.contexts, strict=True
        ):
            window = self.case.params.window
            for position in range(max(0, length - count - window + 1) if window else 0, length - count):
                for memory, tokens in zip((self.cache.keys, self.cache.values), context, strict=True):
                    memory[table[position // size], :, position % size] = tokens[position]

    def expected(self) -> torch.Tensor:
        """[tokens, heads, head_dim] in float64."""
        results, token = [], 0
        for (count, length), context in zip(self.case.rows, self.contexts, strict=True):
            for position in range(length - count, length):
                results.append(attention(self.queries[token], *context, position, self.case.params))
                token += 1
        return torch.stack(results)

    def close(self, result: torch.Tensor) -> None:
        """Asserts that it is what is expected."""
        assert result.dtype == self.case.dtype
        torch.testing.assert_close(result.double(), self.expected(), atol=TOLERANCE[self.case.dtype], rtol=0)


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, params: AttentionParams
) -> torch.Tensor:
    """One token's attention: `queries` [heads, head_dim] at `position` over keys [length, kv_heads, head_dim]."""
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


def score_forms(heads: int) -> list[AttentionParams]:
    """All that scores can go through, alone and together."""
    slopes = tuple(0.5 ** (1 + head % 8) for head in range(heads))
    return [
        AttentionParams(0.25, window=9),
        AttentionParams(2.0, soft_cap=1.5),
        AttentionParams(0.25, alibi_slopes=slopes),
        AttentionParams(0.5, soft_cap=2.0, window=40, alibi_slopes=slopes),
    ]
