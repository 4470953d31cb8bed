"""Attention over block tables."""

import importlib
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
    # Only when it is asked for: there may be no Triton.
    backend: AnyBackend = importlib.import_module("executor.attention.triton.backend").TritonAttention()
    return backend


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
