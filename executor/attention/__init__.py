"""Attention over block tables."""

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

BACKENDS: dict[str, type[AnyBackend]] = {backend.name: backend for backend in (ReferenceAttention, CpuAttention)}

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
