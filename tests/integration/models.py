"""Models to run: tiny random ones of three families, and the demo model where it has been fetched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor.executor import Executor
from executor.loader import load_executor
from executor.settings import ExecutorSettings
from gateway.loading import load_tokenizer
from services.model_store import SMOLLM2

VOCAB_SIZE = 300
"""Of the tiny models."""

FAMILIES: dict[str, transformers.PreTrainedConfig] = {
    "llama": transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    ),
    "opt": transformers.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        bos_token_id=0,
        eos_token_id=1,
    ),
}

_TEXTS = [
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who",
    "def quicksort(items):\n",
    "The three laws of motion are",
    "Dear Sir or Madam,",
    "In the year 1815,",
    "The recipe needs two eggs, some flour and",
    "An operating system gives each process its own address space. Pages of it are mapped to frames of memory, and",
]


@dataclass(eq=False)
class Model:
    """A model's files, `transformers`' form of it, and the executors that run it.

    Attributes:
        prompts: eight; the last one is the longest.
        memory: what an executor takes for blocks on its device, and once more in the host tier.
    """

    path: Path
    transformers: transformers.PreTrainedModel
    prompts: list[list[int]]
    memory: str
    _executors: dict[tuple[int, int], Executor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transformers.eval()
        # What a checkpoint says about generation is the gateway's business.
        self.transformers.generation_config = transformers.GenerationConfig(pad_token_id=0)

    def executor(self, block_size: int, index: int = 0) -> Executor:
        """One of the replicas with this block size. They are loaded once: a higher epoch starts anew."""
        key = (block_size, index)
        if key not in self._executors:
            self._executors[key] = load_executor(
                ExecutorSettings(
                    model=self.path,
                    block_size=block_size,
                    kv_memory=self.memory,
                    host_memory=self.memory,
                    dtype="float32",
                    device="cpu",
                )
            )
        return self._executors[key]


def random_prompt(length: int, seed: int) -> list[int]:
    """No two begin alike."""
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return list(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist())


def make_tiny(config: transformers.PreTrainedConfig, path: Path) -> Model:
    """Random weights of a size that makes some tokens much likelier than others."""
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_norm else 0.3 * noise)
    model.save_pretrained(path)
    prompts = [random_prompt(length, seed=1) for length in (3, 11, 17, 18, 30, 33, 47, 64)]
    return Model(path, model, prompts, memory="4MiB")


def load_demo_model() -> Model:
    """SmolLM2-135M in float32, read by `transformers` on the one side and by the executor on the other."""
    path = SMOLLM2.path
    if not path.is_file():
        pytest.skip("the demo model is not in the cache (make demo fetches it)")
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = load_tokenizer(path)
    return Model(path, model, [tokenizer.encode(text) for text in _TEXTS], memory="48MiB")
