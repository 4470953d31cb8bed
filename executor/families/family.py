"""What a family of models is to the loader: from configuration to description, from stored weights to parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from executor.description import DecoderDescription, Norm


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor of a checkpoint.

    Attributes:
        shape: as stored.
        transposed: stored as [in, out], the other way round than a linear layer's [out, in].
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


# Parameter of the decoder -> stored tensors that make it up, one below the other (along dimension 0).
WeightMap = dict[str, tuple[StoredWeight, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """A table from configuration and weight names to the decoder.

    Attributes:
        architectures: names of it in `config.json`.
        model_type: the same, where a file has no `architectures`.
        describe: parsed `config.json` -> description.
        weight_map: description -> where each of the decoder's parameters comes from.
        prefix: base-model prefix that a checkpoint may or may not have before its names; the weight map has it not.
        ignored: stored names that carry nothing the decoder needs (buffers).
    """

    architectures: tuple[str, ...]
    model_type: str
    describe: Callable[[Mapping[str, Any]], DecoderDescription]
    weight_map: Callable[[DecoderDescription], WeightMap]
    prefix: str
    ignored: re.Pattern[str]


def linear(
    parameter: str, stored: Mapping[str, int], inputs: int, *, bias: bool, transposed: bool = False
) -> WeightMap:
    """The entries of one (possibly fused) linear layer.

    Args:
        parameter: its name in the decoder.
        stored: stored name (without `.weight`) -> number of outputs, in the order in which they are fused.
        inputs: number of inputs.
    """
    entries: WeightMap = {
        f"{parameter}.weight": tuple(
            StoredWeight(f"{name}.weight", (inputs, outputs) if transposed else (outputs, inputs), transposed)
            for name, outputs in stored.items()
        )
    }
    if bias:
        entries[f"{parameter}.bias"] = tuple(
            StoredWeight(f"{name}.bias", (outputs,)) for name, outputs in stored.items()
        )
    return entries


def norm(parameter: str, stored: str, description: Norm, size: int) -> WeightMap:
    """The entries of one normalisation; none if it has no learned weights."""
    kinds = ["weight"] * description.affine + ["bias"] * description.has_bias
    return {f"{parameter}.{kind}": (StoredWeight(f"{stored}.{kind}", (size,)),) for kind in kinds}


def matrix(parameter: str, stored: str, rows: int, columns: int) -> WeightMap:
    """The entry of one plain matrix."""
    return {f"{parameter}.weight": (StoredWeight(f"{stored}.weight", (rows, columns)),)}
