"""A Hugging Face folder: `config.json` with `model.safetensors`, or shards and their index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from executor.errors import CheckpointError
from executor.weights.checkpoint import Checkpoint
from executor.weights.quantised import QuantisedMatrix

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def open_folder(folder: Path) -> Checkpoint:
    """Opens a folder without reading its weights; raises CheckpointError if a file is missing or can't be parsed."""
    config = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.is_file():
        config["eos_token_id"] = _all_eos(config.get("eos_token_id"), _read_json(generation).get("eos_token_id"))
    files = [*_weight_files(folder), folder / "config.json"]
    return Checkpoint(config, SafetensorsFolder(folder), files)


class SafetensorsFolder:
    """Weights of a folder, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: _open(path) for path in _weight_files(folder)}
        self._file_of = {name: file for file in self._files.values() for name in file.keys()}  # noqa: SIM118

    def names(self) -> set[str]:
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        file = self._file_of[name]
        tensor: torch.Tensor = file.get_slice(name)[part] if part else file.get_tensor(name)
        return tensor

    def read_quantised(self, name: str) -> QuantisedMatrix | None:
        return None


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        shards = set(_read_json(folder / _INDEX).get("weight_map", {}).values())
        return [folder / shard for shard in sorted(shards)]
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    raise CheckpointError(f"{folder} has neither {_SINGLE} nor {_INDEX} (other formats of weights are not read)")


def _open(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"can't read {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"can't read {path}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return content


def _all_eos(*values: int | list[int] | None) -> list[int] | None:
    """End-of-sequence tokens of both files: a chat model often names its end of turn only in the second."""
    ids: dict[int, None] = {}
    for value in values:
        ids |= dict.fromkeys(value if isinstance(value, list) else [] if value is None else [value])
    return list(ids) or None
