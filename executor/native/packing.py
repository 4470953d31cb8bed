"""How the decoder's parameters are stored for the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from executor.description import DecoderDescription
from executor.errors import CheckpointError
from executor.native.library import Library
from executor.native.linear import PANEL, PackedLinear, WeightKind, interleave, pack
from executor.native.quantized import QUANTISED, is_quantisable, pack_matrix
from executor.weights import Parameters

# One parameter as the kernels read it, in bytes.
Buffers = Mapping[str, npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """How one matrix is stored.

    Attributes:
        outputs, inputs: of the packed matrix, padding included.
        gated: its rows are a gate's, then as many of what is gated; they are packed in turns.
    """

    kind: WeightKind
    outputs: int
    inputs: int
    gated: bool = False


def plan_matrices(model: DecoderDescription, kind: WeightKind) -> dict[str, MatrixPlan]:
    """All matrices that the kernels multiply with, by parameter.

    Args:
        kind: of all of them, but that what the vocabulary's matrices lose with 4 bits is too much: they have 8 then.
            A matrix that has no whole groups is bfloat16 instead of quantised.
    """
    hidden, inner = model.hidden_size, padded_inner_size(model)
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    vocabulary = _kind(WeightKind.INT8 if kind == WeightKind.INT4 else kind, model.embedding_size)
    kind_of_hidden, kind_of_queries = _kind(kind, hidden), _kind(kind, queries)
    plans = {"embedding.weight": MatrixPlan(vocabulary, model.vocab_size, model.embedding_size)}
    if model.projects_embeddings:
        plans["project_in.weight"] = MatrixPlan(_kind(kind, model.embedding_size), hidden, model.embedding_size)
        plans["project_out.weight"] = MatrixPlan(kind_of_hidden, model.embedding_size, hidden)
    for layer in (f"layers.{index}" for index in range(model.num_layers)):
        mlp_outputs = 2 * inner if model.gated_mlp else inner
        plans[f"{layer}.qkv.weight"] = MatrixPlan(kind_of_hidden, queries + 2 * keys, hidden)
        plans[f"{layer}.attention_out.weight"] = MatrixPlan(kind_of_queries, hidden, queries)
        plans[f"{layer}.mlp_in.weight"] = MatrixPlan(kind_of_hidden, mlp_outputs, hidden, gated=model.gated_mlp)
        plans[f"{layer}.mlp_out.weight"] = MatrixPlan(_kind(kind, model.intermediate_size), hidden, inner)
    if not model.tied_embeddings:
        plans["head.weight"] = MatrixPlan(vocabulary, model.vocab_size, model.embedding_size)
    return plans


def _kind(kind: WeightKind, inputs: int) -> WeightKind:
    """How a matrix is stored whose inputs may not make up groups of 32."""
    return kind if kind not in QUANTISED or is_quantisable(inputs) else WeightKind.BFLOAT16


def padded_inner_size(model: DecoderDescription) -> int:
    """Width of what lies between the MLP's matrices: with a gate it is made of whole panels."""
    return -(-model.intermediate_size // PANEL) * PANEL if model.gated_mlp else model.intermediate_size


def pack_parameter(
    library: Library, parameters: Parameters, name: str, plans: Mapping[str, MatrixPlan]
) -> npt.NDArray[np.uint8]:
    """One parameter as the kernels read it: matrices packed, everything else as floats.

    Raises:
        CheckpointError: it has weights that its kind cannot hold.
    """
    plan = plans.get(name)
    if plan is not None and plan.kind in QUANTISED:
        try:
            return pack_matrix(library, plan.kind, parameters.read_parts(name), gated=plan.gated)
        except ValueError as error:
            raise CheckpointError(f"{name} can't be stored as {plan.kind.name.lower()}: {error}") from error
    values = parameters.read(name, dtype=torch.float32, device=torch.device("cpu")).numpy()
    if plan is None:
        owner = plans.get(f"{name.removesuffix('.bias')}.weight")
        return _bytes(_in_turns(values) if owner is not None and owner.gated else values)
    matrix = _in_turns(values) if plan.gated else values
    padding = plan.inputs - matrix.shape[1]
    packed: PackedLinear = pack(library, plan.kind, np.pad(matrix, [(0, 0), (0, padding)]) if padding else matrix)
    return packed.packed


def _in_turns(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    gate, gated = np.split(values, 2)
    return interleave(gate, gated)


def _bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
