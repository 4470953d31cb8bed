"""The decoder's parameters, made from a checkpoint's tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from executor.errors import CheckpointError
from executor.families import Family, StoredWeight, WeightMap
from executor.progress import Progress, tell_nobody
from executor.weights.checkpoint import WeightSource
from executor.weights.quantised import QuantisedMatrix
from executor.weights.shard import Shard

_MAX_NAMES_SHOWN = 5


class Parameters:
    """The decoder's parameters as a checkpoint holds them, read one at a time.

    Names and shapes of all weights are checked before any is read.

    Args:
        shard: whose part of each is read.

    Raises:
        CheckpointError: names the weights that are missing, unexpected, or of a wrong shape.
    """

    def __init__(
        self,
        source: WeightSource,
        family: Family,
        weight_map: WeightMap,
        shard: Shard,
        on_progress: Progress = tell_nobody,
    ) -> None:
        self._source = source
        self._weight_map = weight_map
        self._shard = shard
        self._on_progress = on_progress
        self._stored_names = _match(source.names(), family, weight_map)
        for weights in weight_map.values():
            for weight in weights:
                _check_shape(source, self._stored_names[weight.name], weight)

    def __iter__(self) -> Iterator[str]:
        """Their names; whoever waits is told how many were gone through."""
        for index, name in enumerate(self._weight_map):
            self._on_progress("Converting weights", index, len(self._weight_map))
            yield name

    def read(self, parameter: str, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Reads, transposes, fuses and converts one of them."""
        weights = self._weight_map[parameter]
        part = self._shard.part(parameter)
        pieces = list(_pieces([_shape(weight)[0] for weight in weights], part.rows))
        others = _shape(weights[0])[1:] if part.columns is None else (len(part.columns),)
        shape = (sum(rows.stop - rows.start for _, rows in pieces), *others)
        if part.is_zero:
            return torch.zeros(shape, dtype=dtype, device=device)
        result = torch.empty(shape, dtype=dtype, device=device)
        first = 0
        for index, rows in pieces:
            values = self._read_piece(weights[index], rows, part.columns)
            result[first : first + len(values)].copy_(values)
            first += len(values)
        return result

    def _read_piece(self, weight: StoredWeight, rows: slice, columns: range | None) -> torch.Tensor:
        """Some rows, and columns, of what is stored, as [out, in]."""
        name = self._stored_names[weight.name]
        others = slice(None) if columns is None else slice(columns.start, columns.stop)
        if weight.transposed:
            return self._source.read(name, (others, rows)).t()
        return self._source.read(name, (rows, others) if len(weight.shape) == 2 else (rows,))

    def read_parts(self, parameter: str) -> list[QuantisedMatrix | npt.NDArray[np.float32]]:
        """The matrices that one of them is made of, one below the other: as quantised as they are stored, or floats."""
        return [self._read_part(weight) for weight in self._weight_map[parameter]]

    def _read_part(self, weight: StoredWeight) -> QuantisedMatrix | npt.NDArray[np.float32]:
        name = self._stored_names[weight.name]
        quantised = None if weight.transposed else self._source.read_quantised(name)
        if quantised is not None:
            return quantised
        values = self._source.read(name).to(torch.float32)
        floats: npt.NDArray[np.float32] = (values.t() if weight.transposed else values).contiguous().numpy()
        return floats

    def read_all(self, *, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
        """All of them by name."""
        # One after another: threads only wait for one another, as dequantising works on few rows at a time in Python.
        return {parameter: self.read(parameter, dtype=dtype, device=device) for parameter in self}


def _shape(weight: StoredWeight) -> tuple[int, ...]:
    """As [out, in]."""
    return weight.shape[::-1] if weight.transposed else weight.shape


def _pieces(heights: Sequence[int], wanted: Sequence[range] | None) -> Iterator[tuple[int, slice]]:
    """Of matrices of so many rows, one below the other, which rows of which are wanted; None: all."""
    for rows in [range(sum(heights))] if wanted is None else wanted:
        first = 0
        for index, height in enumerate(heights):
            start, stop = max(rows.start - first, 0), min(rows.stop - first, height)
            if start < stop:
                yield index, slice(start, stop)
            first += height


def _match(found: set[str], family: Family, weight_map: WeightMap) -> dict[str, str]:
    """Name in the weight map -> name in the checkpoint, which may have the family's prefix."""
    stored_names = {name.removeprefix(family.prefix): name for name in found}
    wanted = {weight.name for weights in weight_map.values() for weight in weights}
    missing = wanted - stored_names.keys()
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_listed(missing)}")
    unexpected = {name for name in stored_names.keys() - wanted if not _may_be_ignored(name, family.ignored)}
    if unexpected:
        raise CheckpointError(f"the checkpoint has weights that its configuration does not: {_listed(unexpected)}")
    return stored_names


def _may_be_ignored(name: str, ignored: re.Pattern[str]) -> bool:
    # A head that isn't wanted is a copy of the embedding it is tied to.
    return name == "lm_head.weight" or ignored.fullmatch(name) is not None


def _check_shape(source: WeightSource, stored_name: str, weight: StoredWeight) -> None:
    shape = source.shape(stored_name)
    if shape != weight.shape:
        raise CheckpointError(f"weight {stored_name} has shape {list(shape)}, expected {list(weight.shape)}")


def _listed(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_NAMES_SHOWN])
    hidden = len(names) - _MAX_NAMES_SHOWN
    return f"{shown} and {hidden} more" if hidden > 0 else shown
