"""Attention over block tables."""

from executor.attention.interface import AttentionBackend, AttentionPlan, StepLayout
from executor.attention.reference import ReferenceAttention

BACKENDS: dict[str, type[AttentionBackend]] = {ReferenceAttention.name: ReferenceAttention}

__all__ = ["BACKENDS", "AttentionBackend", "AttentionPlan", "ReferenceAttention", "StepLayout"]
