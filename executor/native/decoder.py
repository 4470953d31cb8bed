"""The decoder in native code: all layers of a step in one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from executor.description import Activation, DecoderDescription, LearnedPositions, RotaryPositions
from executor.native.library import Crew, Library
from executor.native.linear import Epilogue, LinearStruct
from executor.native.packing import Buffers, MatrixPlan, padded_inner_size
from executor.native.structures import (
    AttentionParams,
    DecoderModel,
    DecoderStep,
    KvCache,
    LayerWeights,
    NormKind,
    NormWeights,
)

# As `octavo::Phase` counts them.
PHASES = ("embed", "norm", "qkv", "rotate", "write", "attend", "attention_out", "mlp_in", "mlp_out", "head")

_GATES: dict[Activation, Epilogue] = {
    "relu": Epilogue.GATE_RELU,
    "silu": Epilogue.GATE_SILU,
    "gelu": Epilogue.GATE_GELU,
    "gelu_tanh": Epilogue.GATE_GELU_TANH,
}
_ACTIVATIONS: dict[Activation, Epilogue] = {
    "relu": Epilogue.RELU,
    "silu": Epilogue.SILU,
    "gelu": Epilogue.GELU,
    "gelu_tanh": Epilogue.GELU_TANH,
}


class NativeDecoder:
    """A decoder as its description says, over packed parameters.

    Args:
        buffers: every parameter, as `executor.native.packing` stores it.
        first_layer: keys and values of the first layer.
        layer_stride: bytes from one layer's keys and values to the next one's.
    """

    def __init__(
        self,
        library: Library,
        model: DecoderDescription,
        buffers: Buffers,
        plans: Mapping[str, MatrixPlan],
        first_layer: KvCache,
        layer_stride: int,
    ) -> None:
        weights = _Weights(buffers, plans)
        layers = (LayerWeights * model.num_layers)(*(weights.layer(f"layers.{i}") for i in range(model.num_layers)))
        structure = _structure(model, weights, layers)
        # What the structures point at.
        self._kept = (buffers, layers)
        new = library.function("octavo_decoder_new", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._handle: int | None = new(ctypes.addressof(structure), ctypes.addressof(first_layer), layer_stride)
        if self._handle is None:
            raise MemoryError("no memory for the decoder")
        weakref.finalize(self, library.function("octavo_decoder_free", None, ctypes.c_void_p), self._handle)
        self._nanoseconds = library.function(
            "octavo_decoder_nanoseconds", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
        )
        self._run = library.function(
            "octavo_decoder_run", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        )

    def run(self, crew: Crew, step: DecoderStep) -> None:
        """Writes the tokens' keys and values; puts the logits of the sampled ones where the step says.

        Raises:
            MemoryError: there is none for a step of this size; nothing was written.
        """
        if self._run(self._handle, crew.handle, ctypes.addressof(step)):
            raise MemoryError(f"no memory for a step of {step.num_rows} rows")

    def phase_seconds(self) -> dict[str, float]:
        """Wall time of all steps so far, by what it was spent on."""
        return {name: self._nanoseconds(self._handle, phase) * 1e-9 for phase, name in enumerate(PHASES)}


def angle_tables(cosines: torch.Tensor, sines: torch.Tensor) -> tuple[npt.NDArray[np.float32], ...]:
    """Contiguous tables, [positions, dim / 2] each, of what `RotaryEmbedding.angles` gives."""
    return tuple(np.ascontiguousarray(table.squeeze(1).numpy(), np.float32) for table in (cosines, sines))


class _Weights:
    """Packed parameters as the kernels' structures."""

    def __init__(self, buffers: Buffers, plans: Mapping[str, MatrixPlan]) -> None:
        self._buffers = buffers
        self._plans = plans

    def linear(self, name: str) -> LinearStruct:
        """A product; one that there is not has no weights."""
        plan = self._plans.get(f"{name}.weight")
        if plan is None:
            return LinearStruct()
        return LinearStruct(
            plan.kind, plan.outputs, plan.inputs, self.address(f"{name}.weight"), self.address(f"{name}.bias")
        )

    def norm(self, name: str) -> NormWeights:
        return NormWeights(self.address(f"{name}.weight"), self.address(f"{name}.bias"))

    def layer(self, name: str) -> LayerWeights:
        norms = (self.norm(f"{name}.{part}") for part in ("attention_norm", "mlp_norm"))
        products = (self.linear(f"{name}.{part}") for part in ("qkv", "attention_out", "mlp_in", "mlp_out"))
        return LayerWeights(*norms, *products)

    def address(self, parameter: str) -> int | None:
        buffer = self._buffers.get(parameter)
        return None if buffer is None else buffer.ctypes.data


def _structure(model: DecoderDescription, weights: _Weights, layers: ctypes.Array[LayerWeights]) -> DecoderModel:
    positions = model.positions
    activations = _GATES if model.gated_mlp else _ACTIVATIONS
    embedding = weights.linear("embedding")
    return DecoderModel(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        embedding_size=model.embedding_size,
        intermediate_size=padded_inner_size(model),
        num_layers=model.num_layers,
        rotary_dim=positions.dim if isinstance(positions, RotaryPositions) else 0,
        position_offset=positions.offset if isinstance(positions, LearnedPositions) else 0,
        norm=NormKind.RMS if model.norm.kind == "rms_norm" else NormKind.LAYER,
        norm_epsilon=model.norm.epsilon,
        norm_first=model.norm_place == "pre",
        has_final_norm=model.final_norm,
        activation=activations[model.activation],
        attention=AttentionParams(scale=model.attention_scale, heads=model.num_heads),
        embedding=embedding,
        head=embedding if model.tied_embeddings else weights.linear("head"),
        project_in=weights.linear("project_in"),
        project_out=weights.linear("project_out"),
        position_embedding=weights.address("position_embedding.weight"),
        final_norm=weights.norm("final_norm"),
        layers=ctypes.addressof(layers),
    )
