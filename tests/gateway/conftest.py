"""Small tokenizers of the two kinds that language models use, trained on a few lines."""

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from gateway.gateway import Gateway
from gateway.prepared import ModelLimits
from gateway.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs, said the fox to the dog",
    "12345 12345 12345 123 45 don't can't won't",
    "häuser größer façade naïve café ☕ 日本語 日本 🙂🙂 emoji",
] * 4


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """GPT-2's kind: every byte is in the vocabulary, characters may be spread over tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([tokenizers.AddedToken("<thïnk >", normalized=False)])
    return Tokenizer(
        backend, eos_token_ids=[2], special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    )


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """Llama 2's kind: a space before the text that decoding takes away again, and bytes for unknown characters."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=40, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    description = json.loads(backend.to_str())
    vocabulary = description["model"]["vocab"]
    vocabulary.update({f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)})
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)), eos_token_ids=[2])


@pytest.fixture
def limits(byte_level: Tokenizer) -> ModelLimits:
    return ModelLimits(max_model_len=64, vocab_size=byte_level.vocab_size, block_size=4)


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def make_gateway(byte_level: Tokenizer) -> Callable[..., Gateway]:
    """Makes a gateway whose random numbers are 7, with or without a chat template."""

    def make(chat_template: str | None = CHAT_TEMPLATE) -> Gateway:
        tokenizer = Tokenizer(
            byte_level.backend,
            eos_token_ids=byte_level.eos_token_ids,
            special_tokens=byte_level.special_tokens,
            chat_template=chat_template,
        )
        return Gateway(tokenizer, "tiny", now=lambda: datetime(2025, 3, 1), random_bits=lambda _: 7)

    return make


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's file."""
    cache = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")
    path = cache / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.skip(f"the demo model is not at {path}")
    return path
