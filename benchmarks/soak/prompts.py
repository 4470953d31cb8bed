"""Prompts of many lengths, a part of which begin alike, some of them in segments with cache scopes of their own."""

from collections.abc import Sequence
from random import Random

from octavo.client import Segment, as_prompt
from octavo.v1 import inference_pb2

# Ordinary words, so that a word is about a token.
_TEXT = """
the a of to in and on with for from by at as is was were has had will can may one two three many few some every
river mountain garden window letter market winter summer morning evening harbour village teacher doctor painter
sailor engine bridge railway station paper silver copper salt bread honey apple cheese lamp clock mirror music story
answer question reason number circle metal stone water wind rain snow fire light shadow forest field road walks
keeps finds gives takes makes reads writes opens closes carries follows remembers forgets builds mends sells old
young quiet bright heavy narrow early late careful simple strange useful common hidden northern western slowly often
never almost again together because although until before after under over between against without
"""
_WORDS = tuple(_TEXT.split())
# Of several tokens each: an answer in their style often ends inside a character.
_LONG_WORDS = ("東京", "日本語", "мир", "🙂", "🚲🌊", "jalapeño", "Straße", "안녕", "שלום")
_LONG_WORD_TOKENS = 5
_SENTENCE_ENDS = (". ", "? ", ", ", ": ", "\n", ".\n\n", "; ")
# Plain text tokens, above the special and single-byte ones of the vocabulary.
_FIRST_TOKEN_ID = 300

NUM_PREFIXES = 3
SHORTEST_PREFIX, LONGEST_PREFIX = 60, 160
SHORTEST, LONGEST = 4, 240

NAMESPACE = "soak"
"""The shared namespace that the caller has joined."""
SCOPES = ("request", "app", "tenant", f"shared:{NAMESPACE}")


class Prompts:
    """Draws text, conversations and token ids.

    Args:
        rng: Every choice comes from it.
        vocab_size: Of the model.
    """

    def __init__(self, rng: Random, vocab_size: int) -> None:
        self._rng = rng
        self._vocab_size = vocab_size
        lengths = [rng.randint(SHORTEST_PREFIX, LONGEST_PREFIX) for _ in range(NUM_PREFIXES)]
        self._texts = [self.text(length) for length in lengths]
        self._tokens = [self._token_ids(length) for length in lengths]

    def draw(self) -> inference_pb2.Prompt:
        """Any prompt, about `SHORTEST` to `LONGEST` tokens long, short ones more often; a third begin alike."""
        form = self._rng.choice((self._text_prompt, self._chat_prompt, self._token_prompt))
        return form(self._rng.random() < 1 / 3)

    def chat(self, num_words: int) -> inference_pb2.Prompt:
        """A conversation of one short message."""
        return as_prompt([{"role": "user", "content": self.text(num_words)}])

    def segmented(self) -> inference_pb2.Prompt:
        """A beginning that others have too, and a tail, in segments of which most have a scope."""
        rng = self._rng
        form = rng.choice(("text", "chat", "tokens"))
        if form == "tokens":
            parts = [rng.choice(self._tokens), *(self._token_ids(self._tail_length()) for _ in range(2))]
            return self._in_scopes(parts)
        texts = [rng.choice(self._texts), *(f" {self.text(self._tail_length())}" for _ in range(2))]
        if form == "text":
            # An empty segment narrows nothing.
            return self._in_scopes([*texts, ""] if rng.random() < 0.2 else list(texts))
        roles = ("system", "user", "user")
        return self._in_scopes([{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])

    def _in_scopes(self, parts: Sequence[str | list[int] | dict[str, str]]) -> inference_pb2.Prompt:
        """The widest scopes come first most of the time: nothing after a narrow one can be reused more widely."""
        rng = self._rng
        scopes: list[str | None] = [rng.choice((None, *SCOPES)) for _ in parts]
        if rng.random() < 0.7:
            scopes.sort(key=lambda scope: SCOPES.index(scope or "tenant"), reverse=True)
        return as_prompt([Segment(part, scope) for part, scope in zip(parts, scopes, strict=True)])

    def text(self, num_words: int) -> str:
        """Words that mean nothing, with punctuation; an eighth of the texts are of fewer, longer words."""
        words = _WORDS
        if self._rng.random() < 1 / 8:
            words, num_words = _LONG_WORDS, -(-num_words // _LONG_WORD_TOKENS)
        pieces = []
        for _ in range(num_words):
            pieces.append(self._rng.choice(words))
            pieces.append(self._rng.choice(_SENTENCE_ENDS) if self._rng.random() < 0.1 else " ")
        return "".join(pieces[:-1])

    def _text_prompt(self, shares: bool) -> inference_pb2.Prompt:
        if shares:
            return as_prompt(f"{self._rng.choice(self._texts)} {self.text(self._tail_length())}")
        return as_prompt(self.text(self._length()))

    def _chat_prompt(self, shares: bool) -> inference_pb2.Prompt:
        messages = []
        if shares:
            messages.append({"role": "system", "content": self._rng.choice(self._texts)})
        if self._rng.random() < 0.25:
            messages.append({"role": "user", "content": self.text(self._tail_length())})
            messages.append({"role": "assistant", "content": self.text(self._tail_length())})
        messages.append({"role": "user", "content": self.text(self._tail_length() if shares else self._length())})
        return as_prompt(messages)

    def _token_prompt(self, shares: bool) -> inference_pb2.Prompt:
        if shares:
            return as_prompt(self._rng.choice(self._tokens) + self._token_ids(self._tail_length()))
        return as_prompt(self._token_ids(self._length()))

    def _token_ids(self, length: int) -> list[int]:
        return [self._rng.randrange(_FIRST_TOKEN_ID, self._vocab_size) for _ in range(length)]

    def _tail_length(self) -> int:
        return self._rng.randint(1, 24)

    def _length(self) -> int:
        return skewed(self._rng, SHORTEST, LONGEST, skew=1.8)


def skewed(rng: Random, shortest: int, longest: int, skew: float = 1.0) -> int:
    """A length in this range, with an even logarithm where skew is 1, and shorter the larger it is."""
    return int(shortest * ((longest + 1) / shortest) ** (rng.random() ** skew))
