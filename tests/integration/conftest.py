"""Models: a tiny random one, made here, and the demo model where it has been fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from services.model_store import SMOLLM2


@dataclass(frozen=True)
class Reference:
    """A model's files, some prompts, and how transformers continues each of them alone, greedily."""

    path: Path
    prompts: list[list[int]]
    outputs: list[list[int]]

    @property
    def num_tokens(self) -> int:
        return len(self.outputs[0])


def continue_greedily(model: transformers.PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
    )
    return list(output[0, len(prompt) :].tolist())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Random weights, large enough that no two tokens are nearly as likely."""
    path = tmp_path_factory.mktemp("tiny")
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(path)
    generator = torch.Generator().manual_seed(1)
    lengths = [3, 11, 17, 18, 30, 33, 47, 64]
    prompts = [torch.randint(0, 300, (length,), generator=generator).tolist() for length in lengths]
    return Reference(path, prompts, [continue_greedily(model, prompt, 20) for prompt in prompts])


@pytest.fixture(scope="session")
def smollm2() -> Reference:
    path = SMOLLM2.path
    if not path.is_file():
        pytest.skip("the demo model is not in the cache (make demo fetches it)")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    texts = [
        "The capital of France is",
        "Once upon a time there was a lighthouse keeper who",
        "def quicksort(items):\n",
        "The three laws of motion are",
        "Dear Sir or Madam,",
        "In the year 1815,",
        "The recipe needs two eggs, some flour and",
        "An operating system gives each process its own address space. Pages of it are mapped to frames of memory, and",
    ]
    prompts = [list(tokenizer(text).input_ids) for text in texts]
    return Reference(path, prompts, [continue_greedily(model, prompt, 24) for prompt in prompts])


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.demo_model)])
def reference(request: pytest.FixtureRequest) -> Reference:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Reference)
    return found
