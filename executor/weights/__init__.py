"""Reading a model's configuration and weights from disk."""

from executor.weights.assemble import assemble
from executor.weights.checkpoint import Checkpoint, WeightSource, open_checkpoint

__all__ = ["Checkpoint", "WeightSource", "assemble", "open_checkpoint"]
