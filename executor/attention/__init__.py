"""Attention over block tables."""

from collections.abc import Callable

from executor.attention.cpu import CpuAttention
from executor.attention.interface import (
    AnyBackend,
    AttentionBackend,
    AttentionParams,
    AttentionPlan,
    DecodePlan,
    StepLayout,
)
from executor.attention.reference import ReferenceAttention


def _triton() -> AnyBackend:
    from executor.attention.triton.backend import TritonAttention  # not before it is asked for: there may be no Triton

    return TritonAttention()


BACKENDS: dict[str, Callable[[], AnyBackend]] = {
    "reference": ReferenceAttention,
    "cpu": CpuAttention,
    "triton": _triton,
}

__all__ = [
    "BACKENDS",
    "AnyBackend",
    "AttentionBackend",
    "AttentionParams",
    "AttentionPlan",
    "CpuAttention",
    "DecodePlan",
    "ReferenceAttention",
    "StepLayout",
]
