"""Finds out what kind of tokenizer lies at a path, and loads it."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import TokenizerNotFound
from gateway.folder_tokenizer import load_folder_tokenizer
from gateway.gguf_tokenizer import load_gguf_tokenizer
from gateway.tokenizer import Tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model, from its folder or its GGUF file.

    Raises:
        TokenizerNotFound: There is nothing there, or a folder without ``tokenizer.json``.
        TokenizerError: What is there is broken or of a kind that is not supported.
    """
    path = Path(path)
    if path.is_dir():
        return load_folder_tokenizer(path)
    if not path.is_file():
        raise TokenizerNotFound(f"{path} does not exist")
    if path.suffix != ".gguf":
        raise TokenizerNotFound(f"{path} is neither a model folder nor a .gguf file")
    return load_gguf_tokenizer(path)
