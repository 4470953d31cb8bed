"""Attention over block tables."""

from executor.attention.cpu import CpuAttention
from executor.attention.interface import AnyBackend, AttentionBackend, AttentionPlan, StepLayout
from executor.attention.reference import ReferenceAttention

BACKENDS: dict[str, type[AnyBackend]] = {backend.name: backend for backend in (ReferenceAttention, CpuAttention)}

__all__ = [
    "BACKENDS",
    "AnyBackend",
    "AttentionBackend",
    "AttentionPlan",
    "CpuAttention",
    "ReferenceAttention",
    "StepLayout",
]
