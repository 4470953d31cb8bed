"""Reading a model's configuration and weights from disk."""

from executor.weights.checkpoint import Checkpoint, WeightSource, open_checkpoint
from executor.weights.parameters import Parameters
from executor.weights.shard import Shard, shard

__all__ = ["Checkpoint", "Parameters", "Shard", "WeightSource", "open_checkpoint", "shard"]
