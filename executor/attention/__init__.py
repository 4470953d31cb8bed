"""Attention over block tables."""

from executor.attention.interface import AnyBackend, AttentionBackend, AttentionPlan, StepLayout
from executor.attention.reference import ReferenceAttention

BACKENDS: dict[str, type[AnyBackend]] = {ReferenceAttention.name: ReferenceAttention}

__all__ = ["BACKENDS", "AnyBackend", "AttentionBackend", "AttentionPlan", "ReferenceAttention", "StepLayout"]
