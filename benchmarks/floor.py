"""The least time that a decode step can take here: bytes that must be read, operations that must be done.

    python -m benchmarks.floor --batch 1 64 --context 128

A step reads every matrix once, the output head with them, and the keys and values of every row's context. It multiplies
each row with every matrix (2 operations a weight), and each query with its context's keys, the weights with its values
(4 operations for each head's dimension and token). Divided by what two threads read and multiply right now
(`benchmarks.probe`), the larger of both times is the floor. Prints a JSON line for each batch size.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.model import bf16_folder
from benchmarks.probe import Probe

_KV_BYTES = 2
"""Of a key's or value's number, bfloat16."""


@dataclass(frozen=True)
class Shape:
    """Of a model of the LLaMA family.

    Attributes:
        matrix_weights: numbers in all matrices that a step multiplies with; a tied embedding counts as output head.
        kv_width: numbers in a layer's keys, and in its values, of one token.
        query_width: numbers in a layer's queries of one token.
    """

    matrix_weights: int
    num_layers: int
    kv_width: int
    query_width: int


def read_shape(folder: Path) -> Shape:
    """From the configuration and the header of ``model.safetensors``, whose embedding is tied."""
    config = json.loads((folder / "config.json").read_text())
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return Shape(
        matrix_weights=sum(math.prod(shape) for shape in shapes if len(shape) == 2),
        num_layers=config["num_hidden_layers"],
        kv_width=config["num_key_value_heads"] * head_dim,
        query_width=config["num_attention_heads"] * head_dim,
    )


def floor(shape: Shape, batch: int, context: int, weight_bits: float, speeds: dict[str, float]) -> dict[str, Any]:
    """The floor of one step of `batch` rows, each with `context` tokens before it."""
    weight_bytes = shape.matrix_weights * weight_bits / 8
    kv_bytes = batch * context * shape.num_layers * 2 * shape.kv_width * _KV_BYTES
    operations = batch * (2 * shape.matrix_weights + 4 * context * shape.num_layers * shape.query_width)
    byte_ms = (weight_bytes + kv_bytes) / speeds["read_gb_s_2"] / 1e6
    operation_ms = operations / speeds["fp32_gflops_2"] / 1e6
    return {
        "batch": batch,
        "context": context,
        "weight_mb": round(weight_bytes / 1e6, 1),
        "kv_mb": round(kv_bytes / 1e6, 1),
        "gflop": round(operations / 1e9, 2),
        "byte_ms": round(byte_ms, 2),
        "operation_ms": round(operation_ms, 2),
        "tokens_per_s": round(1000 * batch / max(byte_ms, operation_ms), 1),
        "probe": speeds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64], help="rows of a step")
    parser.add_argument("--context", type=int, default=128, help="tokens that each row attends to")
    parser.add_argument("--weight-bits", type=float, default=16, help="of a weight, scales included: 5 for Q4_1")
    args = parser.parse_args()
    shape = read_shape(bf16_folder())
    with Probe() as probe:
        for batch in args.batch:
            print(json.dumps(floor(shape, batch, args.context, args.weight_bits, probe.measure())))


if __name__ == "__main__":
    main()
