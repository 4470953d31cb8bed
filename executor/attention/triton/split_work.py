"""Attention of which each program may see only a part of a row's keys, and what becomes of the parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from executor.attention.interface import AttentionParams
from executor.attention.triton.attention import Work, attend
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.heads import Heads
from executor.attention.triton.merge import merge
from executor.attention.triton.shared_prefix import attend_prefixes


@dataclass(frozen=True, slots=True)
class Scratch:
    """Results of parts.

    Attributes:
        parts: [parts, results, heads, head_dim], float32.
        log_sums: [parts, results, heads], float32.
    """

    parts: torch.Tensor
    log_sums: torch.Tensor

    @classmethod
    def empty(cls, num_parts: int, num_results: int, heads: Heads, device: torch.device) -> Scratch:
        shape = (num_parts, num_results, heads.num_heads, heads.head_dim)
        return cls(torch.empty(shape, device=device), torch.empty(shape[:-1], device=device))

    def split(self, num_parts: int) -> tuple[Scratch, Scratch]:
        """The first parts, and the others."""
        return (
            Scratch(self.parts[:num_parts], self.log_sums[:num_parts]),
            Scratch(self.parts[num_parts:], self.log_sums[num_parts:]),
        )


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """What rows read together, on the device.

    Attributes:
        items: as of `executor.attention.triton.prefix_work`.
        num_parts: parts of each row's results that they are, at most.
    """

    items: torch.Tensor
    num_parts: int


@dataclass(frozen=True, slots=True)
class SplitWork:
    """Work whose results come in parts, or whole.

    Attributes:
        num_splits: of the work.
        tokens: [results], int32: the token of each result.
        prefixes: what isn't in the work, since rows read it together.
    """

    work: Work
    num_splits: int
    tokens: torch.Tensor
    prefixes: SharedPrefixes | None = None

    def scratch(self, heads: Heads) -> Scratch | None:
        """What it needs; None where results are whole and go to the output straight."""
        num_parts = self.num_splits + (self.prefixes.num_parts if self.prefixes else 0)
        if num_parts == 1:
            return None
        scratch = Scratch.empty(num_parts, len(self.tokens), heads, self.tokens.device)
        self.clear(scratch)
        return scratch

    def clear(self, scratch: Scratch) -> None:
        """Forgets the parts of prefixes: not every row has any, and not as many as the others."""
        if self.prefixes:
            scratch.log_sums[self.num_splits :].fill_(-math.inf)

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
            return
        own, shared = scratch.split(self.num_splits)
        attend(self.work, cache, queries, params, slopes, own.parts, own.log_sums)
        if self.prefixes:
            ids = self.work.block_ids
            attend_prefixes(self.prefixes.items, ids, cache, queries, params, slopes, shared.parts, shared.log_sums)
        merge(scratch.parts, scratch.log_sums, self.tokens, output)
