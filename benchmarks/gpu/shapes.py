"""Models by their shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from executor.description import DecoderDescription
from executor.families import family_of

THETA = 10_000.0
MAX_CONTEXT = 1 << 17


@dataclass(frozen=True, slots=True)
class Decodes:
    """So many decodes of sequences of so many tokens."""

    batch: int
    context: int

    def num_blocks(self, block_size: int) -> int:
        return self.batch * -(-self.context // block_size)


@dataclass(frozen=True, slots=True)
class Shape:
    """A LLaMA's; the defaults are those of a small one."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    num_layers: int = 1
    hidden_size: int = 64
    intermediate_size: int = 96
    vocab_size: int = 128
    tied_embeddings: bool = True

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Keys and values of one layer."""
        return 2 * self.kv_heads * self.head_dim * itemsize

    def config(self) -> dict[str, Any]:
        """As `transformers` writes it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": MAX_CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": THETA,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied_embeddings,
            "torch_dtype": "float32",
        }

    def description(self) -> DecoderDescription:
        config = self.config()
        return family_of(config).describe(config)

    def with_layers(self, num_layers: int) -> Shape:
        return replace(self, num_layers=num_layers)


LLAMA_8B = Shape("llama-3-8b", 32, 8, 128, 32, 4096, 14336, 128_256, tied_embeddings=False)
SMOLLM2 = Shape("smollm2-135m", 9, 3, 64, 30, 576, 1536, 49_152)
TINY = Shape("tiny", 4, 2, 32, 2)
