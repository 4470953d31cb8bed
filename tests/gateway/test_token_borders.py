"""Tokens before a border hold nothing of what is behind it, and no token is left out that could be one of them."""

import itertools
import json
from pathlib import Path
from unicodedata import category, name, normalize

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, processors

from gateway.detokenizer import byte_level_alphabet
from gateway.loading import load_tokenizer
from gateway.tokenizer import Tokenizer

pieces = st.lists(
    st.one_of(
        st.text(max_size=4),
        st.sampled_from(
            [" the fox", "the", " ", "  ", "\n\n", "<|im_end|>", "日本", "é", "🙂", "e\u0301", "\u0301", "\u0327"]
        ),
        st.sampled_from(["\u1112\u1161", "\u1161", "\u11ab", "ﬁ", "\u200d"]),
    ),
    max_size=8,
)


def variant(tokenizer: Tokenizer, normalizer: normalizers.Normalizer | None, around: bool) -> Tokenizer:
    """The tokenizer with a normalizer, with offsets that leave spaces out, and with tokens around each text."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    if normalizer is not None:
        backend.normalizer = normalizer
    trimming = processors.ByteLevel(trim_offsets=True)
    ends = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    backend.post_processor = processors.Sequence([trimming, ends]) if around else trimming
    return Tokenizer(backend, eos_token_ids=[2])


@pytest.fixture(scope="module")
def plain(byte_level: Tokenizer) -> Tokenizer:
    return variant(byte_level, None, around=False)


@pytest.fixture(scope="module")
def surrounded(byte_level: Tokenizer) -> Tokenizer:
    return variant(byte_level, None, around=True)


@pytest.fixture(scope="module")
def composing(byte_level: Tokenizer) -> Tokenizer:
    return variant(byte_level, normalizers.NFC(), around=False)


ALPHABET = byte_level_alphabet()


def content(tokenizer: Tokenizer, token_id: int) -> bytes:
    """A byte-level token's bytes."""
    token = tokenizer.token(token_id) or ""
    if all(character in ALPHABET for character in token):
        return bytes(ALPHABET[character] for character in token)
    return token.encode()


def composes(character: str) -> bool:
    """Whether it may become one character with those before it."""
    first = normalize("NFKD", character or "x")[0]
    return (
        category(first).startswith("M")
        or "HANGUL JUNGSEONG" in name(first, "")
        or "HANGUL JONGSEONG" in name(first, "")
    )


def cut(tokenizer: Tokenizer, parts: list[str]) -> tuple[list[int], list[int], str, list[int]]:
    """Token ids and counts at the border behind each part; the text and the borders."""
    text, borders = "".join(parts), list(itertools.accumulate(map(len, parts)))
    token_ids, counts = tokenizer.encode_with_borders(text, borders)
    assert token_ids == tokenizer.encode(text)
    assert counts == sorted(counts)
    return token_ids, counts, text, borders


@given(parts=pieces)
def test_byte_level_borders_are_exact(plain: Tokenizer, parts: list[str]) -> None:
    token_ids, counts, text, borders = cut(plain, parts)
    ends = list(itertools.accumulate((len(content(plain, token_id)) for token_id in token_ids), initial=0))
    for count, border in zip(counts, borders, strict=True):
        size = len(text[:border].encode())
        assert ends[count] <= size
        # A mark is not cut off from what it stands on, for other tokenizers compose the two.
        if count < len(token_ids) and not composes(text[border : border + 1]):
            assert ends[count + 1] > size


@given(parts=pieces)
def test_no_composed_character_stands_across_a_border(composing: Tokenizer, parts: list[str]) -> None:
    token_ids, counts, text, borders = cut(composing, parts)
    for count, border in zip(counts, borders, strict=True):
        before = b"".join(content(composing, token_id) for token_id in token_ids[:count])
        assert normalize("NFC", text[:border]).encode().startswith(before)
    if text:
        assert counts[-1] == len(token_ids)


@given(parts=pieces)
def test_what_the_tokenizer_adds(plain: Tokenizer, surrounded: Tokenizer, parts: list[str]) -> None:
    """The first token comes before every border, the last one after all text."""
    bare = cut(plain, parts)
    token_ids, counts, text, borders = cut(surrounded, parts)
    assert token_ids == [1, *bare[0], 2]
    for count, bare_count, border in zip(counts, bare[1], borders, strict=True):
        at_end = border == len(text)
        assert count == (len(token_ids) if at_end and text else bare_count + 1 if text else 2)


@given(parts=st.lists(st.text(alphabet="the fox日🙂é\n", max_size=6), max_size=6))
def test_sentencepiece_borders(sentencepiece: Tokenizer, parts: list[str]) -> None:
    token_ids, counts, text, borders = cut(sentencepiece, parts)
    for count, border in zip(counts, borders, strict=True):
        before = sentencepiece.decode(token_ids[:count], skip_special_tokens=False)
        # Part of a character may be cut off from the rest; then it is not before the border.
        assert text[:border].startswith(before)
        if count < len(token_ids) and "\ufffd" not in (
            more := sentencepiece.decode(token_ids[: count + 1], skip_special_tokens=False)
        ):
            assert len(more) > border or count == 0


def test_a_token_across_the_border_is_not_before_it(byte_level: Tokenizer) -> None:
    token_ids, (count,) = byte_level.encode_with_borders("the fox jumps", [6])
    assert [byte_level.token(token_id) for token_id in token_ids[:2]] == ["the", "Ġfox"]
    assert count == 1
    assert byte_level.encode_with_borders("the fox jumps", [7])[1] == [2]
    assert byte_level.encode_with_borders("the fox jumps", [3])[1] == [1]
    assert byte_level.encode_with_borders("the fox jumps", [4])[1] == [1]


def test_half_a_character_is_not_before_a_border_behind_it(byte_level: Tokenizer) -> None:
    token_ids, counts = byte_level.encode_with_borders("aሴb", [1, 2])
    assert len(token_ids) == 5
    assert counts == [1, 4]


def test_a_token_that_takes_spaces_around_it(byte_level: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level.backend.to_str())
    backend.add_tokens([tokenizers.AddedToken("[think]", lstrip=True, rstrip=True, normalized=False)])
    tokenizer = Tokenizer(backend)
    text = "the  [think]  fox"
    token_ids, counts = tokenizer.encode_with_borders(text, [3, 4, 12, 13, 14])
    assert tokenizer.token(token_ids[1]) == "[think]"
    assert counts == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace(tokenizers.Regex(" +"), " "),
        normalizers.Replace("ab", "c"),
        normalizers.BertNormalizer(),
        normalizers.Sequence([normalizers.NFC(), normalizers.Strip()]),
    ],
)
def test_where_text_is_rewritten_in_unknown_ways_nothing_is_certain(
    byte_level: Tokenizer, normalizer: normalizers.Normalizer
) -> None:
    tokenizer = variant(byte_level, normalizer, around=True)
    token_ids, counts = tokenizer.encode_with_borders("the fox jumps", [3, 7, 13])
    assert counts == [1, 1, len(token_ids)]


def test_offsets_that_were_saved_trimmed(byte_level: Tokenizer, tmp_path: Path) -> None:
    """Changes no token, and is undone wherever it stands in the file."""
    description = json.loads(byte_level.backend.to_str())
    trimming = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    for processor in (trimming, {"type": "Sequence", "processors": [trimming]}):
        description["post_processor"] = processor
        (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.encode("the fox ") == byte_level.encode("the fox ")
        # Only its own space belongs to the second token, so the first one ends right at the border.
        assert tokenizer.encode_with_borders("the fox", [3, 4])[1] == [1, 1]


@pytest.mark.demo_model
def test_the_demo_model_s_borders(demo_model: Path) -> None:
    tokenizer = load_tokenizer(demo_model)
    parts = ["You are brief.\n\n", "The capital of", " France 2024", "é日本", "🙂", "\n"]
    token_ids, counts, text, borders = cut(tokenizer, parts)
    for count, border in zip(counts, borders, strict=True):
        before = b"".join(content(tokenizer, token_id) for token_id in token_ids[:count])
        assert before == text[:border].encode()
