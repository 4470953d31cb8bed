"""Loads a tokenizer from a folder in the Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from gateway.errors import TokenizerError, TokenizerNotFound
from gateway.tokenizer import Tokenizer

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SLOW_FILES = ("vocab.json", "merges.txt", "tokenizer.model", "vocab.txt", "spiece.model")


def load_folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder.

    ``tokenizer.json`` is needed; what ``tokenizer_config.json``, ``special_tokens_map.json``, ``chat_template.jinja``,
    ``generation_config.json`` and ``config.json`` say is used where they exist.

    Raises:
        TokenizerNotFound: There is no ``tokenizer.json``.
        TokenizerError: A file is broken.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerNotFound(_missing(folder))
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    config = _read_json(folder / "tokenizer_config.json")
    special = _special_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    return Tokenizer(
        backend,
        eos_token_ids=_eos_token_ids(folder, backend, special.get("eos_token")),
        special_tokens=special,
        chat_template=_chat_template(folder, config),
    )


def _missing(folder: Path) -> str:
    slow = [name for name in _SLOW_FILES if (folder / name).is_file()]
    if not slow:
        return f"{folder} has no tokenizer.json"
    return (
        f"{folder} has no tokenizer.json, only {', '.join(slow)}: save the tokenizer in the fast format first "
        "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))"
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} does not hold a JSON object")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """A token is written as a string or as an object with its content."""
    tokens = {}
    for name in _TOKEN_NAMES:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _eos_token_ids(folder: Path, backend: tokenizers.Tokenizer, eos_token: str | None) -> list[int]:
    """What the model's configuration says, one id or several, and the tokenizer's own end of sequence."""
    configured = _read_json(folder / "generation_config.json").get("eos_token_id")
    if configured is None:
        configured = _read_json(folder / "config.json").get("eos_token_id")
    ids = [] if configured is None else configured if isinstance(configured, list) else [configured]
    own = backend.token_to_id(eos_token) if eos_token is not None else None
    return [*ids, own] if own is not None else ids


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The template in a file of its own, or in the configuration, where it may be one of several named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None
