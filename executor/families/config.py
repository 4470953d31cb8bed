"""Reading a Hugging Face `config.json` field by field, with the defaults of its family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executor.description import Activation
from executor.errors import CheckpointError, UnsupportedModel

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class ModelConfig:
    """A parsed `config.json`. A field that is absent or null has its family's default.

    Args:
        values: the parsed file.
        defaults: what that family's configuration class fills in.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = values
        self._defaults = defaults

    def get(self, key: str) -> Any:
        value = self._values.get(key)
        return self._defaults.get(key) if value is None else value

    def integer(self, key: str) -> int:
        """Raises CheckpointError unless the field is a positive whole number."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"config.json: {key} must be a positive integer, not {value!r}")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        return as_number(self.get(key), key)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: {key} must be true or false, not {value!r}")
        return value

    def activation(self, key: str) -> Activation:
        name = self.get(key)
        if name not in _ACTIVATIONS:
            raise UnsupportedModel(
                f"activation {name!r} ({key}) is not supported; supported: {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    def eos_token_ids(self) -> tuple[int, ...]:
        value = self.get("eos_token_id")
        if value is None:
            return ()
        return tuple(value) if isinstance(value, list) else (int(value),)

    def dtype(self) -> str:
        """The checkpoint's element type: `dtype`, or `torch_dtype` in files of transformers before 5."""
        return str(self.get("dtype") or self.get("torch_dtype") or "float32")


def as_number(value: object, key: str) -> float:
    """Raises CheckpointError unless `value` is a number above 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)
