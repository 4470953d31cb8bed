"""What one step computes, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """Rows and tokens of one step, all of them or one tenant's."""

    sequences: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0


class StepLoad:
    """The load of one step by tenant.

    Args:
        decodes: how many sequences of each tenant get one token.
    """

    def __init__(self, decodes: Mapping[str, int]) -> None:
        self._decodes = dict(decodes)
        self._chunks: dict[str, tuple[int, int]] = {}

    def add_chunk(self, tenant: str, num_tokens: int) -> None:
        """A part of a prompt is computed too."""
        num_chunks, total = self._chunks.get(tenant, (0, 0))
        self._chunks[tenant] = num_chunks + 1, total + num_tokens

    def by_tenant(self) -> dict[str, Load]:
        """Of each tenant that has a row."""
        loads = {tenant: Load(number, 0, number) for tenant, number in self._decodes.items()}
        for tenant, (num_chunks, num_tokens) in self._chunks.items():
            load = loads.setdefault(tenant, Load())
            load.sequences += num_chunks
            load.prefill_tokens = num_tokens
        return loads
