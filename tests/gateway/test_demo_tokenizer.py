"""The demo model's own tokenizer, against transformers reading the same file."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.detokenizer import DetokenizerFactory
from gateway.gateway import Gateway
from gateway.loading import load_tokenizer
from gateway.prepared import ModelLimits
from gateway.request import ChatMessage, ChatPrompt
from gateway.tokenizer import Tokenizer

pytestmark = pytest.mark.demo_model

TEXTS = [
    "The capital of France is Paris.",
    "  indented\n\tand tabbed  \r\n\n\nand spaced   ",
    "don't DON'T we'll I'VE it's",
    "def f(x):\n    return {'a': [x, -x]} if x != 0 else None  # ☕",
    "Grüße, naïve façade. 日本語のテキスト。 Привет! 🙂👩‍👩‍👧 \u200d",
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|>",
]


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(demo_model.parent, gguf_file=demo_model.name)


def test_ids_are_those_of_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    for text in TEXTS:
        assert tokenizer.encode(text) == reference(text)["input_ids"]


def test_digits_stand_alone_as_the_model_was_trained(tokenizer: Tokenizer) -> None:
    """transformers leaves `tokenizer.ggml.pre` unread and cuts the spaces before a digit apart."""
    ids = tokenizer.encode("in 2024:  7")
    assert [tokenizer.token(token_id) for token_id in ids] == ["in", "Ġ", "2", "0", "2", "4", ":", "ĠĠ", "7"]


def test_text_comes_back_piece_by_piece(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=False)
        pieces = [detokenizer.add([token_id]) for token_id in tokenizer.encode(text)]
        assert "".join(pieces) + detokenizer.finish() == text


def test_chat_renders_as_transformers_does(tokenizer: Tokenizer, reference: Any) -> None:
    gateway = Gateway(tokenizer, "smollm2", now=datetime.now)
    limits = ModelLimits(max_model_len=8192, vocab_size=49152, block_size=16)
    for messages in (
        [ChatMessage("user", "What is PagedAttention?")],
        [ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello")],
    ):
        expected = reference.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=True,
            return_dict=False,
        )
        assert gateway.tokenize(ChatPrompt(messages), limits) == expected


def test_what_the_file_says(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_tokens["bos_token"] == "<|im_start|>"
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
