"""Tokenizers in folders, and what is no tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import TokenizerError, TokenizerNotFound
from gateway.loading import load_tokenizer
from gateway.tokenizer import Tokenizer


@pytest.fixture
def folder(byte_level: Tokenizer, tmp_path: Path) -> Path:
    byte_level.backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_the_file_alone_is_enough(folder: Path, byte_level: Tokenizer) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("the fox") == byte_level.encode("the fox")
    assert (tokenizer.eos_token_ids, tokenizer.chat_template, tokenizer.special_tokens) == ((), None, {})


def test_everything_that_belongs_to_it_is_read(folder: Path) -> None:
    put(folder, "special_tokens_map.json", {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"})
    put(
        folder,
        "tokenizer_config.json",
        {"eos_token": {"content": "<|im_end|>", "special": True}, "pad_token": None, "chat_template": "config"},
    )
    put(folder, "generation_config.json", {"eos_token_id": [0, 2]})
    put(folder, "config.json", {"eos_token_id": 1})
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.eos_token_ids == (0, 2)
    assert tokenizer.chat_template == "config"
    put(folder, "chat_template.jinja", "file")
    assert load_tokenizer(folder).chat_template == "file"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": 1}}, (1,)),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, (1,)),
        ({"config.json": {"eos_token_id": [1, 0]}, "tokenizer_config.json": {"eos_token": "<|im_end|>"}}, (1, 0, 2)),
        ({"tokenizer_config.json": {"eos_token": "<|im_end|>"}}, (2,)),
        ({"tokenizer_config.json": {"eos_token": "no such token"}}, ()),
    ],
)
def test_where_the_end_of_sequence_is_written(folder: Path, files: dict[str, Any], expected: tuple[int, ...]) -> None:
    for name, content in files.items():
        put(folder, name, content)
    assert load_tokenizer(folder).eos_token_ids == expected


def test_of_several_templates_the_default_is_taken(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    put(folder, "tokenizer_config.json", {"chat_template": named})
    assert load_tokenizer(folder).chat_template == "plain"


def test_saved_truncation_and_padding_are_off(folder: Path) -> None:
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    description["truncation"] = {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    description["padding"] = {
        "strategy": {"Fixed": 100},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    put(folder, "tokenizer.json", description)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("the quick fox"), skip_special_tokens=False) == "the quick fox"


def test_a_folder_without_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFound, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    put(tmp_path, "vocab.json", "{}")
    put(tmp_path, "merges.txt", "")
    with pytest.raises(TokenizerNotFound, match=r"no tokenizer\.json, only vocab\.json, merges\.txt.*fast format"):
        load_tokenizer(tmp_path)


def test_paths_without_a_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFound, match="nowhere does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    put(tmp_path, "model.bin", "x")
    with pytest.raises(TokenizerNotFound, match=r"model\.bin is neither"):
        load_tokenizer(tmp_path / "model.bin")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_broken_files_are_named(folder: Path, name: str, content: str) -> None:
    put(folder, name, content)
    with pytest.raises(TokenizerError, match=name.replace(".", r"\.")):
        load_tokenizer(folder)
