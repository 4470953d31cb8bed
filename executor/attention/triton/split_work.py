"""Attention of which each program may see only a part of a row's keys, and what becomes of the parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.attention.interface import AttentionParams
from executor.attention.triton.attention import Work, attend
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.heads import Heads
from executor.attention.triton.merge import merge


@dataclass(frozen=True, slots=True)
class Scratch:
    """Results of splits.

    Attributes:
        parts: [splits, results, heads, head_dim], float32.
        log_sums: [splits, results, heads], float32.
    """

    parts: torch.Tensor
    log_sums: torch.Tensor

    @classmethod
    def empty(cls, num_splits: int, num_results: int, heads: Heads, device: torch.device) -> Scratch:
        shape = (num_splits, num_results, heads.num_heads, heads.head_dim)
        return cls(torch.empty(shape, device=device), torch.empty(shape[:-1], device=device))


@dataclass(frozen=True, slots=True)
class SplitWork:
    """Work whose results come in parts, or whole.

    Attributes:
        num_splits: 1 where they are whole and go to the output straight.
        tokens: [results], int32: the token of each result.
    """

    work: Work
    num_splits: int
    tokens: torch.Tensor

    def scratch(self, heads: Heads) -> Scratch | None:
        """What it needs; None where results are whole."""
        if self.num_splits == 1:
            return None
        return Scratch.empty(self.num_splits, len(self.tokens), heads, self.tokens.device)

    def attend(
        self,
        cache: BlockCache,
        queries: torch.Tensor,
        params: AttentionParams,
        slopes: torch.Tensor,
        output: torch.Tensor,
        scratch: Scratch | None,
    ) -> None:
        if scratch is None:
            attend(self.work, cache, queries, params, slopes, output)
        else:
            attend(self.work, cache, queries, params, slopes, scratch.parts, scratch.log_sums)
            merge(scratch.parts, scratch.log_sums, self.tokens, output)
