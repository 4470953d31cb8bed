"""One executor on several devices: each process, a rank, computes its part of every layer."""

from executor.tensor_parallel.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks"]
