"""Tokenizers built from GGUF metadata, against the tokenizer that was written into it."""

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import TokenizerError
from gateway.loading import load_tokenizer
from gateway.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def write(path: Path, **values: Any) -> Path:
    """A GGUF file with nothing but `tokenizer.ggml.*` entries, and the chat template, if given."""
    writer = gguf.GGUFWriter(path, "llama")
    if template := values.pop("chat_template", None):
        writer.add_chat_template(template)
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_values(tokenizer: Tokenizer) -> dict[str, Any]:
    """The entries that describe a byte-level tokenizer."""
    description = json.loads(tokenizer.backend.to_str())
    tokens = [tokenizer.token(token_id) or "" for token_id in range(tokenizer.vocab_size)]
    added = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in description["added_tokens"]}
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [added.get(token_id, NORMAL) for token_id in range(len(tokens))],
        "merges": [" ".join(merge) for merge in description["model"]["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


@pytest.fixture(scope="module")
def from_gguf(byte_level: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return load_tokenizer(write(path, **byte_level_values(byte_level), chat_template="{{ messages }}"))


texts = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from([" the fox", "12345", " don't", "  ", "\n\n", "<|im_end|>", "<thïnk >", " 日本", "é"]),
    ),
    max_size=8,
).map("".join)


@given(text=texts)
def test_byte_level_ids_and_text_are_the_original_s(byte_level: Tokenizer, from_gguf: Tokenizer, text: str) -> None:
    ids = from_gguf.encode(text)
    assert ids == byte_level.encode(text)
    for skip in (True, False):
        assert from_gguf.decode(ids, skip_special_tokens=skip) == byte_level.decode(ids, skip_special_tokens=skip)
    assert from_gguf.decode(ids, skip_special_tokens=False) == text


def test_what_else_the_file_says(from_gguf: Tokenizer, byte_level: Tokenizer) -> None:
    assert from_gguf.vocab_size == byte_level.vocab_size
    assert from_gguf.eos_token_ids == (2,)
    assert from_gguf.special_token_ids == {0, 1, 2}
    assert from_gguf.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    assert from_gguf.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["a", "12345"]),
        ("default", ["a", "12345"]),
        ("smollm", ["a", "1", "2", "3", "4", "5"]),
        ("llama-bpe", ["a", "123", "45"]),
        ("qwen2", ["a", "1", "2", "3", "4", "5"]),
    ],
)
def test_numbers_are_cut_as_the_model_was_trained(
    byte_level: Tokenizer, tmp_path: Path, pre: str, pieces: list[str]
) -> None:
    assert [byte_level.token(token_id) for token_id in byte_level.encode("a12345")] == ["a", "12345"]
    values = {**byte_level_values(byte_level), "pre": pre, "add_bos_token": False}
    tokenizer = load_tokenizer(write(tmp_path / "model.gguf", **values))
    assert [tokenizer.token(token_id) for token_id in tokenizer.encode("a12345")] == pieces
    assert tokenizer.decode(tokenizer.encode("it's  12 a\n\n34é")) == "it's  12 a\n\n34é"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [0]),
        ({"add_bos_token": True}, [1, 0]),
        ({"add_eos_token": True}, [0, 2]),
        ({"add_bos_token": True, "add_eos_token": True}, [1, 0, 2]),
        ({"pre": "llama-bpe"}, [1, 0]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [0]),
    ],
)
def test_first_and_last_tokens(
    byte_level: Tokenizer, tmp_path: Path, values: dict[str, Any], expected: list[int]
) -> None:
    tokenizer = load_tokenizer(write(tmp_path / "model.gguf", **{**byte_level_values(byte_level), **values}))
    assert tokenizer.encode("<|endoftext|>") == expected
    assert tokenizer.encode("<|endoftext|>", add_special_tokens=False) == [0]


def test_several_tokens_may_end_a_sequence(byte_level: Tokenizer, tmp_path: Path) -> None:
    values = {**byte_level_values(byte_level), "eot_token_id": 0, "eom_token_id": 2}
    assert load_tokenizer(write(tmp_path / "model.gguf", **values)).eos_token_ids == (2, 0)


# --- SentencePiece --------------------------------------------------------------------------------------------------

PIECES = ["▁a", "▁b", "ab", "abc", "bc", "▁▁", "▁▁▁▁", "▁the", "he", "th", "the", "▁t", "bab", "cab"]
CHARACTERS = ["▁", "a", "b", "c", "t", "h", "e"]


def sentencepiece_values() -> dict[str, Any]:
    """The entries that describe a small SentencePiece tokenizer: the better a piece, the earlier it stands."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, *CHARACTERS, "<|tool|>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(PIECES) + len(CHARACTERS)), USER_DEFINED]
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": [float(-index) for index in range(len(tokens))],
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


@pytest.fixture(scope="module")
def sentencepiece_gguf(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write(tmp_path_factory.mktemp("gguf") / "model.gguf", **sentencepiece_values()))


def best_pairs_first(text: str) -> list[str]:
    """SentencePiece's BPE as its paper says it: of all neighbours that join to a piece, the best pair joins."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        joined = [
            (PIECES.index(left + right), at)
            for at, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in PIECES
        ]
        if not joined:
            return symbols
        _, at = min(joined)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@given(text=st.text(alphabet=" abcthe", min_size=1, max_size=24))
def test_sentencepiece_joins_the_best_pairs_first(sentencepiece_gguf: Tokenizer, text: str) -> None:
    ids = sentencepiece_gguf.encode(text, add_special_tokens=False)
    assert [sentencepiece_gguf.token(token_id) for token_id in ids] == best_pairs_first(" " + text)


@given(text=st.text(max_size=20))
def test_sentencepiece_text_comes_back(sentencepiece_gguf: Tokenizer, text: str) -> None:
    assert sentencepiece_gguf.decode(sentencepiece_gguf.encode(text)) == text.replace("▁", " ")


def test_sentencepiece_details(sentencepiece_gguf: Tokenizer, tmp_path: Path) -> None:
    def spell(tokenizer: Tokenizer, text: str) -> list[str | None]:
        return [tokenizer.token(token_id) for token_id in tokenizer.encode(text)]

    assert spell(sentencepiece_gguf, "the") == ["<s>", "▁the"]
    assert spell(sentencepiece_gguf, "é</s>a<|tool|>") == ["<s>", "▁", "<0xC3>", "<0xA9>", "</s>", "▁a", "<|tool|>"]
    assert sentencepiece_gguf.special_token_ids == {0, 1, 2}
    bare = load_tokenizer(
        write(tmp_path / "bare.gguf", **sentencepiece_values(), add_space_prefix=False, add_bos_token=False)
    )
    assert spell(bare, "the a") == ["the", "▁a"]
    assert bare.decode(bare.encode(" a")) == " a"


# --- What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "'bert'; supported are 'gpt2' and 'llama'"),
        ({"pre": "tekken"}, "'tekken'; supported are default, gpt-2.*smollm"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"model": "llama"}, r"no tokenizer\.ggml\.scores"),
        ({"model": None}, r"no tokenizer\.ggml\.model"),
        ({"tokens": None, "token_type": None}, r"no tokenizer\.ggml\.tokens"),
    ],
)
def test_unknown_kinds_are_named(byte_level: Tokenizer, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    values = {**byte_level_values(byte_level), **change}
    path = write(tmp_path / "model.gguf", **{name: value for name, value in values.items() if value is not None})
    with pytest.raises(TokenizerError, match=message) as error:
        load_tokenizer(path)
    assert str(path) in str(error.value)
