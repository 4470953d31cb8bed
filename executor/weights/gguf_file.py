"""A GGUF file of the LLaMA architecture, seen as the Hugging Face checkpoint it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
import torch

from executor.errors import CheckpointError, UnsupportedModel
from executor.weights.checkpoint import Checkpoint
from executor.weights.gguf_blocks import quantised_matrix
from executor.weights.quantised import QuantisedMatrix

# GGUF's file type 1 and everything quantised computes in half precision; bfloat16 has the range for all of them.
_UNQUANTISED_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}
_QUANTISED_DTYPE = "bfloat16"

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Not a weight: per-frequency divisors of the rotary embedding.
_ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: Path) -> Checkpoint:
    """Opens a file without reading its weights.

    Raises:
        CheckpointError: if the file can't be parsed.
        UnsupportedModel: for another architecture, experts, or partial rotary embedding.
    """
    try:
        reader = _Reader(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"can't read {path}: {error}") from error
    config = _config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return Checkpoint(config, GgufWeights(reader, heads), [path])


class _Reader(gguf.GGUFReader):
    """GGUFReader that steps over arrays.

    They are the tokenizer, which the executor doesn't need, and they take the library seconds: an array object for
    each of some 150,000 elements.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[gguf.GGUFValueType]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        # An array is: type of the elements (4 bytes), number of elements (8 bytes), elements.
        element = gguf.GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        if element == gguf.GGUFValueType.STRING:
            end = self._end_of_strings(orig_offs + 12, count)
        elif element in self.gguf_scalar_to_np:
            end = orig_offs + 12 + count * np.dtype(self.gguf_scalar_to_np[element]).itemsize
        else:
            raise ValueError(f"an array of {element.name}")
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, element]

    def _end_of_strings(self, start: int, count: int) -> int:
        """Where `count` strings from `start` on end. A string is: number of bytes (8 bytes), bytes."""
        order: Literal["big", "little"] = "big" if self.endianess == gguf.GGUFEndian.BIG else "little"
        content = self.data.data
        end = start
        for _ in range(count):
            end += 8 + int.from_bytes(content[end : end + 8], order)
            if end > len(content):
                raise ValueError("the file ends inside an array of strings")
        return end


class GgufWeights:
    """Weights under the names, and in the row order, of `transformers`.

    Args:
        reader: the opened file.
        heads: weights whose rows llama.cpp reorders, with their number of heads. Its rotary embedding turns
            neighbours (0, 1), (2, 3)... where that of `transformers` turns halves (0, dim/2), (1, dim/2 + 1)...
    """

    def __init__(self, reader: gguf.GGUFReader, heads: dict[str, int]) -> None:
        self._tensors = {_stored_name(tensor.name): tensor for tensor in reader.tensors if tensor.name != _ROPE_FACTORS}
        self._heads = {_LAYER_NAMES[name]: count for name, count in heads.items()}

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        tensor, order = self._tensors[name], self._row_order(name)
        rows = part[0] if part else slice(None)
        # Only the wanted rows are dequantised.
        data = tensor.data[rows if order is None else order[rows]]
        values = torch.from_numpy(_dequantised(data, tensor.tensor_type))
        wanted = (slice(None), *part[1:])
        return values.reshape(len(data), *self.shape(name)[1:])[wanted]

    def read_quantised(self, name: str) -> QuantisedMatrix | None:
        tensor = self._tensors[name]
        matrix = quantised_matrix(tensor.data, tensor.tensor_type) if len(tensor.shape) == 2 else None
        order = self._row_order(name)
        return matrix if matrix is None or order is None else matrix.rows(order)

    def _row_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Where the rows of `transformers` are in the file; None where they are as there."""
        for layer_name, heads in self._heads.items():
            if f".{layer_name}." in name:
                return _halves_together(self.shape(name)[0], heads)
        return None


def _dequantised(data: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.float32]:
    try:
        # Unquantised tensors come as views of the read-only file.
        return np.require(gguf.dequantize(data, kind), np.float32, "W")
    except NotImplementedError as error:
        raise UnsupportedModel(f"GGUF quantisation {kind.name} is not supported") from error


def _halves_together(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """Undoes llama.cpp's order of each head's rows: from x0 y0 x1 y1 ... to x0 x1 ... y0 y1 ..."""
    pairs = np.arange(rows, dtype=np.int64).reshape(heads, -1, 2)
    order: npt.NDArray[np.int64] = pairs.swapaxes(1, 2).reshape(rows)
    return order


def _stored_name(name: str) -> str:
    base, _, kind = name.rpartition(".")
    if base in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[base]}.{kind}"
    block, _, rest = base.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    return name


def _config(reader: gguf.GGUFReader) -> dict[str, Any]:
    """The metadata as a LLaMA `config.json`."""
    metadata = _Metadata(reader)
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModel(f"GGUF architecture {architecture} is not supported; supported: llama")
    if metadata.get("llama.expert_count"):
        raise UnsupportedModel("GGUF models with experts are not supported")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise CheckpointError("GGUF weight token_embd.weight is missing")
    heads = metadata.integer("llama.attention.head_count")
    hidden_size = metadata.integer("llama.embedding_length")
    head_dim = metadata.integer("llama.attention.key_length", default=hidden_size // heads)
    if metadata.get("llama.rope.dimension_count") not in (None, head_dim):
        raise UnsupportedModel("GGUF LLaMA models that rotate only a part of each head are not supported")
    eos = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("llama.attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "rms_norm_eps": metadata.get("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": metadata.get("llama.rope.freq_base")} | _rope_scaling(metadata, tensors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "eos_token_id": [token for token in dict.fromkeys(eos) if token is not None],
        "dtype": _UNQUANTISED_DTYPES.get(metadata.get("general.file_type"), _QUANTISED_DTYPE),
    }


def _rope_scaling(metadata: _Metadata, tensors: dict[str, gguf.ReaderTensor]) -> dict[str, Any]:
    if _ROPE_FACTORS in tensors:
        factors = tensors[_ROPE_FACTORS]
        return {"rope_type": "frequency_factors", "factors": _dequantised(factors.data, factors.tensor_type).tolist()}
    kind = metadata.get("llama.rope.scaling.type")
    if kind in (None, "none"):
        return {}
    return {"rope_type": kind, "factor": metadata.get("llama.rope.scaling.factor")}


class _Metadata:
    """The file's key-value fields."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str) -> Any:
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def integer(self, key: str, default: int | None = None) -> int:
        value = default if key not in self._fields else self.get(key)
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(f"GGUF field {key} must be a positive integer, not {value!r}")
        return value
