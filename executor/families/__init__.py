"""Families of models: each a table from a Hugging Face configuration and weight names to the decoder's description."""

from executor.families.family import Family, StoredWeight, WeightMap
from executor.families.registry import FAMILIES, family_of

__all__ = ["FAMILIES", "Family", "StoredWeight", "WeightMap", "family_of"]
