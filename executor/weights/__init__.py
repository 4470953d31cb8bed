"""Reading a model's configuration and weights from disk."""

from executor.weights.checkpoint import Checkpoint, WeightSource, open_checkpoint
from executor.weights.parameters import Parameters

__all__ = ["Checkpoint", "Parameters", "WeightSource", "open_checkpoint"]
