"""Models with random weights: what a step costs does not depend on them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.shapes import Shape
from executor.families import family_of
from executor.loaded_model import LoadedModel
from executor.model_choice import load_model
from executor.progress import tell_nobody
from executor.settings import ExecutorSettings
from executor.weights import Checkpoint
from executor.weights.quantised import QuantisedMatrix


class RandomWeights:
    """A checkpoint's tensors, made when they are read, on the device that shall have them.

    They are so large that each token's successor depends on those before it.
    """

    def __init__(self, shape: Shape, device: torch.device, seed: int) -> None:
        config = shape.config()
        family = family_of(config)
        weight_map = family.weight_map(family.describe(config))
        self._shapes = {weight.name: weight.shape for weights in weight_map.values() for weight in weights}
        self._generator = torch.Generator(device).manual_seed(seed)

    def names(self) -> set[str]:
        return set(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        full = self._shapes[name]
        size = [len(range(*each.indices(length))) for each, length in zip(part, full, strict=False)] + list(
            full[len(part) :]
        )
        device = self._generator.device
        if len(full) == 1:
            return torch.ones(size, device=device)
        return torch.randn(size, generator=self._generator, device=device).mul_(2 / full[-1] ** 0.5)

    def read_quantised(self, name: str) -> QuantisedMatrix | None:
        return None


def load_random_model(machine: Machine, shape: Shape, block_size: int, dtype: str, seed: int = 0) -> LoadedModel:
    """A model as the executor computes it on this machine."""
    settings = ExecutorSettings(
        Path(shape.name),
        kv_memory="1MiB",
        device=machine.device.type,
        dtype=dtype,
        decoder="torch",
        attention_backend="triton",
        block_size=block_size,
        cuda_graphs=not machine.tiny,
    )
    checkpoint = Checkpoint(shape.config(), RandomWeights(shape, machine.device, seed), [])
    family = family_of(checkpoint.config)
    description = family.describe(checkpoint.config)
    return load_model(settings, checkpoint, family, description, machine.device, tell_nobody)[0]


def write_random_model(shape: Shape, folder: Path, seed: int) -> None:
    """The same as configuration and weights in a folder."""
    weights = RandomWeights(shape, torch.device("cpu"), seed)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    save_file({name: weights.read(name) for name in sorted(weights.names())}, folder / "model.safetensors")


def weight_bytes(shape: Shape, itemsize: int) -> int:
    """What a step reads of the weights: all, but of the embedding only where it is the head too."""
    weights = RandomWeights(shape, torch.device("cpu"), 0)
    numbers = sum(math.prod(weights.shape(name)) for name in weights.names())
    looked_up = 0 if shape.tied_embeddings else shape.vocab_size * shape.hidden_size
    return itemsize * (numbers - looked_up)
