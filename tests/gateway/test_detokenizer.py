"""Text that comes out piece by piece is the text of the whole, for any ids."""

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from gateway.detokenizer import DetokenizerFactory, byte_level_alphabet
from gateway.errors import TokenizerError
from gateway.tokenizer import Tokenizer

random_ids = st.lists(st.integers(0, 10_000), max_size=40)
chunk_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=10)


def stream(tokenizer: Tokenizer, token_ids: Sequence[int], sizes: Sequence[int], skip: bool) -> list[str]:
    """The pieces that come out when ids go in by chunks of the given sizes, over and over."""
    detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=skip)
    pieces, start, turn = [], 0, 0
    while start < len(token_ids):
        size = sizes[turn % len(sizes)]
        pieces.append(detokenizer.add(token_ids[start : start + size]))
        start, turn = start + size, turn + 1
    return [*pieces, detokenizer.finish()]


def fold(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Ids of the vocabulary, and of three rows that a model may have beyond it."""
    return [token_id % (tokenizer.vocab_size + 3) for token_id in ids]


@given(ids=random_ids, sizes=chunk_sizes, skip=st.booleans())
def test_byte_level_pieces_make_the_whole(byte_level: Tokenizer, ids: list[int], sizes: list[int], skip: bool) -> None:
    ids = fold(ids, byte_level)
    assert "".join(stream(byte_level, ids, sizes, skip)) == byte_level.decode(ids, skip_special_tokens=skip)


@given(content=st.binary(max_size=24), sizes=chunk_sizes)
def test_byte_level_treats_broken_characters_as_the_library_does(
    byte_level: Tokenizer, content: bytes, sizes: list[int]
) -> None:
    character_of = {byte: character for character, byte in byte_level_alphabet().items()}
    ids = [byte_level.backend.token_to_id(character_of[byte]) for byte in content]
    text = "".join(stream(byte_level, ids, sizes, True))
    assert text == byte_level.decode(ids) == content.decode(errors="replace")


@given(ids=random_ids, sizes=chunk_sizes, skip=st.booleans(), bytes_only=st.booleans())
def test_sentencepiece_pieces_make_the_whole(
    sentencepiece: Tokenizer, ids: list[int], sizes: list[int], skip: bool, bytes_only: bool
) -> None:
    first_byte = sentencepiece.backend.token_to_id("<0x00>")
    ids = [first_byte + token_id % 256 for token_id in ids] if bytes_only else fold(ids, sentencepiece)
    assert "".join(stream(sentencepiece, ids, sizes, skip)) == sentencepiece.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=30), sizes=chunk_sizes)
def test_any_text_comes_back_in_whole_characters(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str, sizes: list[int]
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        pieces = stream(tokenizer, tokenizer.encode(text, add_special_tokens=False), sizes, False)
        assert "".join(pieces) == tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False)
        if "\ufffd" not in text:
            assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(prepend_scheme="always"),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.WordPiece(),
        decoders.Fuse(),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")]),
    ],
    ids=["none", "metaspace", "metaspace never", "wordpiece", "fuse", "gemma"],
)
@given(ids=random_ids, sizes=chunk_sizes)
def test_other_decoders(decoder: decoders.Decoder | None, ids: list[int], sizes: list[int]) -> None:
    words = ["▁", "▁▁", "a", "▁b", "##c", ".", "n't", " ", "<0xC3>", "<0xA9>", "<0xFF>", "<0x41>", "é"]
    backend = tokenizers.Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    tokenizer = Tokenizer(backend)
    ids = fold(ids, tokenizer)
    assert "".join(stream(tokenizer, ids, sizes, True)) == tokenizer.decode(ids)


def test_a_decoder_that_looks_ahead_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a</w>": 0}, merges=[]))
    backend.decoder = decoders.BPEDecoder()
    with pytest.raises(TokenizerError, match="BPEDecoder"):
        DetokenizerFactory(Tokenizer(backend))


def test_text_is_out_as_soon_as_it_is_certain(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_level).create(skip_special_tokens=True)
    ids = byte_level.encode("the fox")
    assert [detokenizer.add([token_id]) for token_id in ids] == [byte_level.decode([token_id]) for token_id in ids]

    detokenizer = DetokenizerFactory(sentencepiece).create(skip_special_tokens=True)
    byte_ids = [sentencepiece.backend.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode()]
    fox, dog = sentencepiece.encode("fox"), sentencepiece.encode("dog")
    assert detokenizer.add(fox) == "fox"
    assert [detokenizer.add([token_id]) for token_id in byte_ids] == ["", ""]
    assert detokenizer.add(dog) == "é dog"


def test_the_text_of_special_tokens_is_left_out_or_kept(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("fox<|im_end|>dog")
    assert stream(byte_level, ids, [100], True) == ["foxdog", ""]
    assert stream(byte_level, ids, [100], False) == ["fox<|im_end|>dog", ""]


def test_what_is_kept_back_comes_out_at_the_end(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    character_of = {byte: character for character, byte in byte_level_alphabet().items()}
    half = [byte_level.backend.token_to_id(character_of[byte]) for byte in "🙂".encode()[:2]]
    assert stream(byte_level, half, [1], True) == ["", "", "\ufffd"]
    whole = [sentencepiece.backend.token_to_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    assert stream(sentencepiece, whole, [1], True) == ["", "", "", "", "🙂"]


class RecordingTokenizer(Tokenizer):
    """Remembers how many ids each decoding was given."""

    decoded: list[int]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.decoded.append(len(token_ids))
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


def test_a_token_costs_the_same_late_in_a_long_sequence(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for base in (byte_level, sentencepiece):
        tokenizer = RecordingTokenizer(base.backend)
        tokenizer.decoded = []
        detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=True)
        for token_id in base.encode("the fox é ☕ ") * 100:
            detokenizer.add([token_id])
        assert max(tokenizer.decoded, default=0) <= 10


def test_the_alphabet_is_the_library_s() -> None:
    assert sorted(byte_level_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_level_alphabet().values()) == list(range(256))
