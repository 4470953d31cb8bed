"""Guided answers are what was asked for, and the same whatever happens to them on the way."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from executor.guides.guides import Guides
from kvmanager.cost_model import Preemption
from kvmanager.request import FinishReason
from octavo.v1 import common_pb2
from tests.executor.vocabularies import EOS, random_vocabulary
from tests.integration.models import VOCAB_SIZE, Model, random_prompt
from tests.integration.stack import Stack

MAX_TOKENS = 60


@pytest.fixture(scope="module")
def contents() -> list[bytes]:
    """Of each token."""
    return random_vocabulary(random.Random(3), VOCAB_SIZE)[1]


@pytest.fixture
def guided(tiny: Model) -> Iterator[Model]:
    """The model, with a vocabulary."""
    executors = [tiny.executor(4, index) for index in range(2)]
    for executor in executors:
        executor._guides = Guides(lambda: random_vocabulary(random.Random(3), VOCAB_SIZE)[0], VOCAB_SIZE)
    yield tiny
    for executor in executors:
        executor._guides = Guides(lambda: pytest.fail("nobody asked for it"), VOCAB_SIZE)


def _guide(choice: int) -> common_pb2.Guide:
    """Answers of about thirty tokens."""
    if choice % 2:
        return common_pb2.Guide(grammar=LLMatcher.grammar_from_regex("(a|é|🐙){20,25}"))
    schema = {"type": "array", "items": {"enum": ["日本", 7, None]}, "minItems": 6, "maxItems": 8}
    schema["x-guidance"] = {"whitespace_flexible": False}
    return common_pb2.Guide(grammar=LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def _submit(stack: Stack, handle: int, seed: int) -> None:
    """Every third one is not guided; some are groups of samples."""
    options: dict[str, Any] = {"n": 1 + handle % 2 * 2, "temperature": 0.8, "seed": seed + handle}
    if handle % 3:
        options |= {"guide": _guide(handle // 3), "stop_token_ids": (EOS,)}
    stack.submit(handle, random_prompt(9 + 3 * handle, seed), MAX_TOKENS if handle % 3 else 30, **options)


def _check(stack: Stack, handle: int, contents: list[bytes]) -> None:
    answer = stack.answers[handle]
    for tokens, reason in zip(answer.token_ids, answer.reasons, strict=True):
        if handle % 3 and reason is FinishReason.STOP:
            text = b"".join(contents[token] for token in tokens[:-1]).decode()
            if handle // 3 % 2:
                assert set(text) <= {"a", "é", "🐙"}
                assert 20 <= len(text) <= 25
            else:
                assert 6 <= len(json.loads(text)) <= 8


@pytest.fixture
def seed() -> int:
    seed = random.randrange(1 << 20)
    print(f"seed {seed}")
    return seed


def _alone(model: Model, seed: int, count: int) -> list[list[list[int]]]:
    answers = []
    for handle in range(count):
        stack = Stack(model, 4)
        _submit(stack, handle, seed)
        stack.run()
        answers.append(stack.answers[handle].token_ids)
    return answers


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_together_and_preempted_they_are_what_they_are_alone(
    guided: Model, contents: list[bytes], preemption: Preemption, seed: int
) -> None:
    alone = _alone(guided, seed, 6)
    stack = Stack(guided, 4, num_blocks=75, num_host_blocks=256, preemption=preemption)
    for handle in range(6):
        _submit(stack, handle, seed)
    stack.run()
    assert any(stack.preempted(handle) for handle in range(6) if handle % 3)
    assert [stack.answers[handle].token_ids for handle in range(6)] == alone
    ended = 0
    for handle in range(6):
        _check(stack, handle, contents)
        ended += handle % 3 > 0 and FinishReason.STOP in stack.answers[handle].reasons
    assert ended


def test_they_go_on_when_their_executor_is_lost(guided: Model, contents: list[bytes], seed: int) -> None:
    alone = _alone(guided, seed, 6)
    stack = Stack(guided, 4, num_executors=2)
    for handle in range(6):
        _submit(stack, handle, seed)
    for _ in range(12):
        stack.step()
    stack.lose("executor-0")
    stack.run()
    assert [stack.answers[handle].token_ids for handle in range(6)] == alone
    for handle in range(6):
        _check(stack, handle, contents)
