"""The forms of the demo model that systems are compared with hold the same weights and the same tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.floor import read_shape
from benchmarks.model import bf16_folder
from benchmarks.peers.bf16_gguf import bf16_gguf
from gateway.loading import load_tokenizer
from services.model_store import SMOLLM2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.demo_model,
    pytest.mark.skipif(not SMOLLM2.path.is_file(), reason="the demo model is not in the cache (make demo fetches it)"),
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has the demo model and nothing else."""
    source = SMOLLM2.path
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    SMOLLM2.path.parent.mkdir()
    SMOLLM2.path.symlink_to(source)
    return tmp_path


def numbers(path: Path) -> dict[str, np.ndarray]:
    tensors = gguf.GGUFReader(path).tensors
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors}


def rounded(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values.copy()).bfloat16().float().numpy()


def test_the_gguf_file_in_bfloat16(cache: Path) -> None:
    made = bf16_gguf()
    original, converted = numbers(SMOLLM2.path), numbers(made)
    assert original.keys() == converted.keys()
    for name, values in original.items():
        expected = rounded(values) if values.ndim > 1 else values
        np.testing.assert_array_equal(converted[name], expected, err_msg=name)
    fields = [set(gguf.GGUFReader(path).fields) for path in (SMOLLM2.path, made)]
    kept = {name for name in fields[0] if not name.startswith("GGUF.") and name != "general.quantization_version"}
    assert kept <= fields[1]
    assert bf16_gguf() == made
    assert [path.name for path in made.parent.iterdir() if "partial" in path.name] == []


def test_the_folder_in_bfloat16(cache: Path) -> None:
    folder = bf16_folder()
    weights = load_file(folder / "model.safetensors")
    original = numbers(SMOLLM2.path)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ):
        np.testing.assert_array_equal(weights[ours].float().numpy(), rounded(original[theirs]), err_msg=ours)
    assert read_shape(folder).matrix_weights == sum(each.numel() for each in weights.values() if each.dim() == 2)
    ours, theirs = load_tokenizer(folder), load_tokenizer(SMOLLM2.path)
    text = "Fold it 3 times: <|im_start|>naïve café, 印刷所 🐙\n\n  def f(x):"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.chat_template == theirs.chat_template
    assert set(ours.eos_token_ids) == set(theirs.eos_token_ids)
