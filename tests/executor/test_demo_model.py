"""A real model, SmolLM2-135M-Instruct, in float32: greedy output equals that of transformers token for token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers

_CACHE = Path(os.environ.get("OCTAVO_CACHE", Path.home() / ".cache" / "octavo"))
_MODEL = _CACHE / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_NEW_TOKENS = 24
_PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "List three colours of the rainbow: 1.",
    "In 1969, the first people",
    "The opposite of hot is",
    "A page table maps virtual addresses to physical ones. An operating system uses it so that every process has",
]

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not _MODEL.is_file(), reason=f"the demo model is not at {_MODEL} (make demo fetches it)"),
]


@pytest.fixture(scope="module")
def prompts_and_outputs():
    """Token ids of the prompts, and how transformers continues each of them alone."""
    options = {"gguf_file": _MODEL.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(_MODEL.parent, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(_MODEL.parent, **options, dtype=torch.float32)
    prompts = [tokenizer(text).input_ids for text in _PROMPTS]
    outputs = []
    for tokens in prompts:
        output = model.generate(
            torch.tensor([tokens]),
            max_new_tokens=_NEW_TOKENS,
            min_new_tokens=_NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
        outputs.append(output[0, len(tokens) :].tolist())
    return prompts, outputs


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("block_size", "alone"), [(1, (0, 3, 6)), (16, (1, 4, 7)), (32, (2, 5))])
def test_greedy_output_batched_and_alone(prompts_and_outputs, load, drive, block_size, alone):
    prompts, outputs = prompts_and_outputs
    executor = load(_MODEL, block_size=block_size, kv_memory="64MiB")
    assert drive(executor, seed=block_size).generate(prompts, _NEW_TOKENS, chunk=8) == outputs
    for epoch, i in enumerate(alone, start=2):
        assert drive(executor, epoch=epoch).generate([prompts[i]], _NEW_TOKENS) == [outputs[i]]
