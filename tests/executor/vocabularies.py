"""Small vocabularies to guide answers with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from executor.guides.vocabulary import Vocabulary
from gateway.detokenizer import byte_level_alphabet

SPECIAL = ["<s>", "</s>"]
EOS = 1
"""The id of the second one."""

_SYLLABLES = [
    '{"',
    '":',
    '",',
    '"}',
    "true",
    "fal",
    "null",
    ", ",
    "  ",
    "\n",
    "10",
    "0.5",
    "-",
    "[]",
    "a",
    "b",
    "é",
    "日本",
    "🐙",
]


def random_vocabulary(rng: random.Random, size: int) -> tuple[Vocabulary, list[bytes]]:
    """All bytes, some longer tokens, of which some begin or end inside a character, and two special tokens.

    Returns:
        The vocabulary, and the bytes of each token.
    """
    contents = [bytes([byte]) for byte in range(256)]
    while len(contents) < size - len(SPECIAL):
        content = "".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))).encode()
        content = content[rng.randint(0, 1) : len(content) - rng.randint(0, 1)]
        if content and content not in contents:
            contents.append(content)
    rng.shuffle(contents)
    return vocabulary_of(contents), [*(name.encode() for name in SPECIAL), *contents]


def vocabulary_of(contents: Sequence[bytes]) -> Vocabulary:
    """Of byte-level tokens, behind the special ones."""
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    tokens = ["".join(characters[byte] for byte in content) for content in contents]
    ids = {token: index for index, token in enumerate([*SPECIAL, *tokens])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    return Vocabulary(backend.to_str(), (EOS,))
