"""A model on disk: its configuration and its weights, whatever the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from executor.errors import CheckpointError
from executor.weights.quantised import QuantisedMatrix


class WeightSource(Protocol):
    """Named tensors of a checkpoint, read one at a time."""

    def names(self) -> set[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        """The tensor on the CPU; quantised ones as float32.

        Args:
            part: what is wanted along each of the first dimensions; the rest is not read as far as that can be.
        """
        ...

    def read_quantised(self, name: str) -> QuantisedMatrix | None:
        """The matrix with the codes that it is stored with; None where it is stored otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model.

    Attributes:
        config: what `config.json` says, or its equivalent.
        weights: under the names `transformers` gives them.
        files: what all of it was read from.
    """

    config: Mapping[str, Any]
    weights: WeightSource
    files: list[Path]


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a folder with `config.json` and safetensors, or a `.gguf` file. Weights are read later.

    Raises:
        CheckpointError: if there is no such thing at `path`.
        UnsupportedModel: for a GGUF file of another architecture than LLaMA.
    """
    # Imported here so that reading one format doesn't need the library of the other.
    if path.is_dir():
        from executor.weights.safetensors_folder import open_folder

        return open_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        from executor.weights.gguf_file import open_gguf

        return open_gguf(path)
    if not path.exists():
        raise CheckpointError(f"there is no model at {path}")
    raise CheckpointError(f"{path} is neither a folder with config.json and safetensors nor a .gguf file")
