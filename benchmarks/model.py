"""The model that every system is measured with: SmolLM2-135M in bfloat16, made once from the demo model.

    python -m benchmarks.model

prints the folder: safetensors, configuration and tokenizer as `transformers` writes them. The demo model's 4-bit
weights are read out as numbers and rounded to bfloat16, so all systems that take bfloat16 run on the same weights.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from gateway.loading import load_tokenizer
from services.model_store import SMOLLM2, fetch_model


def bf16_folder() -> Path:
    """The folder in the cache; made where it is not there yet, which takes a minute and `transformers`."""
    folder = SMOLLM2.path.parent / "SmolLM2-135M-Instruct-bf16"
    if not folder.is_dir():
        _make(fetch_model(SMOLLM2.name), folder)
    return folder


def _make(gguf: Path, folder: Path) -> None:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    # Its weights are plain numbers now. What they were read from would be written down as their format.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # `transformers` would make SentencePiece's decoder of it; the gateway's is the one that the model was trained with.
    made = load_tokenizer(gguf)
    fast: Any = transformers.PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=made.backend, **made.special_tokens)
    tokenizer.chat_template = made.chat_template
    # Moved into place when it is whole: one that was interrupted is not taken for a model.
    scratch = Path(tempfile.mkdtemp(prefix="converting-", dir=folder.parent))
    try:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch)
        raise


if __name__ == "__main__":
    print(bf16_folder())
