"""Builds a tokenizer from the metadata of a GGUF file.

Two kinds are known. ``gpt2`` is byte-level BPE: the vocabulary and the merges are in the file, how a text is cut into
words is only named (``tokenizer.ggml.pre``). ``llama`` is SentencePiece BPE: pieces with scores, bytes for characters
that are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from gateway.errors import TokenizerError
from gateway.gguf_metadata import Value, read_gguf_metadata
from gateway.tokenizer import Tokenizer

_SPACE = "▁"


class _TokenType(IntEnum):
    """``tokenizer.ggml.token_type``, as far as it matters here."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Raises:
        TokenizerError: The file cannot be read, or its tokenizer is of a kind that is not supported.
    """
    try:
        return _build(_Metadata(read_gguf_metadata(path)))
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error


class _Metadata:
    """The ``tokenizer.*`` part of a GGUF file."""

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values
        self.tokens: list[str] = self.required("tokens")
        self.token_types: list[int] = self.get("token_type", [])

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(f"tokenizer.ggml.{name}", default)

    def required(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise TokenizerError(f"the metadata has no tokenizer.ggml.{name}")
        return value

    @property
    def chat_template(self) -> str | None:
        template = self._values.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def token(self, name: str) -> str | None:
        """The spelling of the token whose id is stored under a name such as ``bos_token_id``."""
        token_id = self.get(name)
        return self.tokens[token_id] if token_id is not None and token_id < len(self.tokens) else None

    def tokens_of(self, *types: _TokenType) -> list[str]:
        wanted = set(types)
        return [token for token, kind in zip(self.tokens, self.token_types, strict=False) if kind in wanted]


def _build(metadata: _Metadata) -> Tokenizer:
    kind = metadata.required("model")
    if kind == "gpt2":
        backend = _byte_level_bpe(metadata)
    elif kind == "llama":
        backend = _sentencepiece_bpe(metadata)
    else:
        raise TokenizerError(f"tokenizer.ggml.model is {kind!r}; supported are 'gpt2' and 'llama'")
    _add_added_tokens(backend, metadata)
    _add_post_processor(backend, metadata)
    end_ids = (metadata.get(f"{name}_token_id") for name in ("eos", "eot", "eom"))
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: metadata.token(f"{key}_token_id") for name, key in names.items()}
    return Tokenizer(
        backend,
        eos_token_ids=[token_id for token_id in end_ids if token_id is not None],
        special_tokens={name: token for name, token in special.items() if token is not None},
        chat_template=metadata.chat_template,
    )


def _add_added_tokens(backend: tokenizers.Tokenizer, metadata: _Metadata) -> None:
    """Marks the tokens that are found in a text as they are written, before it is cut into words."""
    special = metadata.tokens_of(_TokenType.CONTROL, _TokenType.UNKNOWN)
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in special])
    added = metadata.tokens_of(_TokenType.USER_DEFINED)
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False, special=False) for token in added])


def _add_post_processor(backend: tokenizers.Tokenizer, metadata: _Metadata) -> None:
    """Puts the first token before a text, and the last one after it, where the model wants them."""
    bos, eos = metadata.token("bos_token_id"), metadata.token("eos_token_id")
    # Files that do not say it: SentencePiece models and Llama 3 were trained with a first token, the others without.
    bos_by_default = metadata.get("model") == "llama" or metadata.get("pre") in _LLAMA3
    before = [bos] if bos is not None and metadata.get("add_bos_token", bos_by_default) else []
    after = [eos] if eos is not None and metadata.get("add_eos_token", False) else []
    if before or after:
        ids = {token: metadata.tokens.index(token) for token in (*before, *after)}
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=list(ids.items())
        )


# --- Byte-level BPE -----------------------------------------------------------------------------------------------


def _gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _regex_words(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _cl100k_words(longest_number: int) -> pre_tokenizers.PreTokenizer:
    """The pattern of OpenAI's cl100k_base, in which numbers are cut after so many digits."""
    return _regex_words(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+"
        rf"|\p{{N}}{{1,{longest_number}}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+"
        r"|\s+(?!\S)"
        r"|\s+"
    )


_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_QWEN2 = ("qwen2",)
_WORDS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2_words,
    "gpt-2": _gpt2_words,
    "gpt2": _gpt2_words,
    "smollm": _smollm_words,
    **dict.fromkeys(_LLAMA3, lambda: _cl100k_words(3)),
    **dict.fromkeys(_QWEN2, lambda: _cl100k_words(1)),
}


def _byte_level_bpe(metadata: _Metadata) -> tokenizers.Tokenizer:
    words = metadata.get("pre", "default")
    if words not in _WORDS:
        raise TokenizerError(f"tokenizer.ggml.pre is {words!r}; supported are {', '.join(_WORDS)}")
    merges: list[str] = metadata.required("merges")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(metadata.tokens)},
            merges=[_pair(merge) for merge in merges],
            # Llama 3 takes a whole word that is in the vocabulary as it is, even where no merges lead to it.
            ignore_merges=words in _LLAMA3,
        )
    )
    if words in _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _WORDS[words]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


# --- SentencePiece BPE --------------------------------------------------------------------------------------------


def _sentencepiece_bpe(metadata: _Metadata) -> tokenizers.Tokenizer:
    """SentencePiece's BPE (Kudo and Richardson, EMNLP 2018): of all neighbours, the pair with the best score merges."""
    scores: list[float] = metadata.required("scores")
    vocabulary = {token: token_id for token_id, token in enumerate(metadata.tokens)}
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_by_score(metadata.tokens, scores),
            unk_token=metadata.token("unknown_token_id"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that joins to a token, best score of the joined token first."""
    known = set(tokens)
    ranked = sorted(zip(tokens, scores, strict=True), key=lambda piece: -piece[1])
    return [
        (token[:cut], token[cut:])
        for token, _ in ranked
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
