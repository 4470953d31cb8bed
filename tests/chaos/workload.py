"""What the clients ask for, again and again: requests of every kind whose answers never vary."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.client import AsyncClient, PromptLike
from octavo.v1 import common_pb2, inference_pb2
from tests.services.e2e.calls import Answer
from tests.services.e2e.tiny_model import MAX_MODEL_LEN, Reference

_SEED = 20
"""The requests are the same in every run, so that no run meets a token that two roundings of one sum decide."""

_WORDS = ("sheet", "fold", "page", "leaf", "octavo", "quarto", "folio", "print", "bind", "read", "number", "reader")
_LOGPROB_TOLERANCE = 1e-3
_LEARNED_AT_ONCE = 8


@dataclass
class Case:
    """One request.

    Attributes:
        kind: What it stands for.
        prompt: As a client gives it.
        options: Sampling parameters.
        expected: The undisturbed answer.
    """

    kind: str
    prompt: PromptLike
    options: dict[str, Any]
    expected: Answer = field(default_factory=Answer)

    def send(self, client: AsyncClient, timeout: float | None = None) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Starts it."""
        return client.generate(self.prompt, timeout=timeout, **self.options)


def cases() -> list[Case]:
    """Requests of every kind, without their answers."""
    rng = random.Random(_SEED)
    made = list(_plain(rng))
    made += _sharing_prefixes(rng)
    made += _several_sequences(rng)
    return made


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def _plain(rng: random.Random) -> Iterator[Case]:
    for number in range(10):
        text = f"{number} {_text(rng, rng.randint(2, 30))}"
        length = rng.choice([10, 60, 150, 300])
        yield Case("greedy", text, {"temperature": 0, "max_tokens": length, "ignore_eos": True})
        yield Case("seeded", text, {"temperature": 0.8, "seed": number, "max_tokens": length, "ignore_eos": True})
    for number in range(4):
        options = {"temperature": 0, "max_tokens": 100, "ignore_eos": True}
        yield Case("logprobs", _text(rng, 8), {"logprobs": number, **options})
        yield Case("stop string", _text(rng, 9), {"stop": ["?"], **options})
        yield Case("until its end", _text(rng, 5), {"temperature": 1.0, "seed": number, "max_tokens": 250})
        chat = [{"role": "user", "content": _text(rng, 12)}]
        yield Case("chat", chat, {"temperature": 0.7, "top_p": 0.9, "seed": number, "max_tokens": 80})


def _sharing_prefixes(rng: random.Random) -> Iterator[Case]:
    for seed in range(3):
        prefix = [rng.randrange(3, 380) for _ in range(rng.randint(150, 300))]
        for number in range(4):
            tail = [rng.randrange(3, 380) for _ in range(rng.randint(1, 60))]
            prompt = prefix + tail
            options = {"max_tokens": MAX_MODEL_LEN - len(prompt) - 10, "ignore_eos": True}
            sampling = {"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": seed}
            yield Case("long prompt", prompt, options | sampling)


def _several_sequences(rng: random.Random) -> Iterator[Case]:
    for number in range(4):
        sampling = {"temperature": 0.9, "seed": number, "max_tokens": 90, "ignore_eos": True}
        yield Case("n=2", _text(rng, 10), {"n": 2, **sampling})
        yield Case("n=2", _text(rng, 10), {"n": 3, "logprobs": 1, "stop": ["."], **sampling})
    yield Case("best of", _text(rng, 6), {"n": 1, "best_of": 3, "temperature": 0.9, "seed": 4, "max_tokens": 30})
    yield Case("beams", _text(rng, 6), {"n": 2, "beam_width": 3, "max_tokens": 30})


class Workload:
    """All requests with their right answers, once `learn` has been called.

    Attributes:
        cases: The requests.
    """

    def __init__(self, reference: Reference) -> None:
        self.cases = cases()
        self._reference = reference
        self._known = False

    async def learn(self, client: AsyncClient) -> None:
        """Asks for each, a few at a time, and checks greedy ones against transformers. The first time only."""
        if self._known:
            return
        left = iter(self.cases)

        async def ask() -> None:
            for case in left:
                await self._learn(client, case)

        await asyncio.gather(*(ask() for _ in range(_LEARNED_AT_ONCE)))
        self._known = True

    async def _learn(self, client: AsyncClient, case: Case) -> None:
        if "stop" in case.options:
            case.options["stop"] = [await _piece_of_the_answer(client, case)]
        async for response in case.send(client):
            case.expected.add(response)
        assert case.expected.complete
        if case.kind == "greedy":
            assert isinstance(case.prompt, str)
            prompt, answer = self._reference.encode(case.prompt), case.expected.token_ids
            likeliest = self._reference.logprobs(prompt + answer).argmax(dim=-1)
            assert answer == likeliest[len(prompt) - 1 : -1].tolist()


async def _piece_of_the_answer(client: AsyncClient, case: Case) -> str:
    """Three characters from the middle of what it says without a stop string."""
    text = ""
    async for response in client.generate(case.prompt, **case.options | {"stop": None}):
        if response.sequence_index == 0:
            text += response.text
    middle = len(text) // 2
    return text[middle : middle + 3]


def difference(case: Case, answer: Answer, *, partial: bool = False) -> str:
    """How an answer differs from the undisturbed one; "" where it does not.

    Args:
        partial: Whether it may end before its end.
    """
    if not partial and not answer.complete:
        return f"it ended early: {answer}"
    for index, got in answer.sequences.items():
        wanted = case.expected.sequences[index]
        length = len(got.token_ids) if partial else len(wanted.token_ids)
        if got.token_ids != wanted.token_ids[:length]:
            return f"sequence {index}: tokens {got.token_ids}, undisturbed {wanted.token_ids}"
        if not wanted.text.startswith(got.text) or (not partial and got.text != wanted.text):
            return f"sequence {index}: text {got.text!r}, undisturbed {wanted.text!r}"
        if (got.finish_reason or not partial) and got.finish_reason != wanted.finish_reason:
            return f"sequence {index}: ended with {got.finish_reason}, undisturbed with {wanted.finish_reason}"
        if len(got.logprobs) != len(wanted.logprobs[:length]):
            return f"sequence {index}: {len(got.logprobs)} log probabilities of {len(got.token_ids)} tokens"
        for position, (one, other) in enumerate(zip(got.logprobs, wanted.logprobs, strict=False)):
            if not _alike(one, other):
                return f"sequence {index}, position {position}: log probabilities {one}, undisturbed {other}"
    if not partial and answer.sequences.keys() != case.expected.sequences.keys():
        return f"sequences {sorted(answer.sequences)}, undisturbed {sorted(case.expected.sequences)}"
    return ""


def _alike(one: common_pb2.TokenLogprobs, other: common_pb2.TokenLogprobs) -> bool:
    values = [(one.logprob, other.logprob), *zip(one.top_logprobs, other.top_logprobs, strict=True)]
    return all(abs(left - right) < _LOGPROB_TOLERANCE for left, right in values)
