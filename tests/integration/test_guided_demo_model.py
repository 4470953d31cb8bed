"""A real model, SmolLM2-135M: guided answers of every kind in one batch, beside one that is not guided."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from executor.guides.guides import Guides
from executor.guides.vocabulary import Vocabulary
from gateway.guide_compiler import grammar_of
from gateway.loading import load_tokenizer
from gateway.request import Guide, GuideKind
from kvmanager.request import FinishReason
from octavo.v1 import common_pb2
from services.model_store import SMOLLM2
from tests.integration.models import Model
from tests.integration.stack import Stack

pytestmark = [pytest.mark.demo_model, pytest.mark.timeout(300)]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["poet", "king"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
NAME = r"[A-Z][a-z]{2,9} the (First|Second)"
CITIES = ("Paris", "London", "東京")
GUIDES = [
    Guide(GuideKind.JSON_SCHEMA, json.dumps(PERSON)),
    Guide(GuideKind.REGEX, NAME),
    Guide(GuideKind.GRAMMAR, 'start: "(" start ")" | CITY\nCITY: "Paris" | "London"'),
    Guide(GuideKind.CHOICE, choices=CITIES),
]


def test_guided_answers(smollm2: Model) -> None:
    tokenizer = load_tokenizer(SMOLLM2.path)
    vocabulary = Vocabulary(tokenizer.backend.to_str(), tokenizer.eos_token_ids)
    smollm2.executor(16)._guides = Guides(lambda: vocabulary, 49152)
    prompt = tokenizer.encode("A famous person, as JSON: ")
    (unguided,) = Stack(smollm2, block_size=16).generate([prompt], 12)

    stack = Stack(smollm2, block_size=16)
    handles = range(2 * len(GUIDES))
    for handle in handles:
        guide = common_pb2.Guide(grammar=grammar_of(GUIDES[handle // 2]))
        sampling: dict[str, Any] = {"temperature": 1.0, "seed": handle} if handle % 2 else {}
        stack.submit(handle, prompt, 120, guide=guide, stop_token_ids=tokenizer.eos_token_ids, **sampling)
    stack.submit(99, prompt, 12)
    stack.run()
    assert stack.tokens(99) == unguided
    for handle in handles:
        assert stack.answers[handle].reasons == [FinishReason.STOP]
    texts = [tokenizer.decode(stack.tokens(handle)) for handle in handles]
    for text in texts[:2]:
        person = json.loads(text)
        assert list(person) == ["name", "age", "tags"]
        assert 0 <= person["age"] <= 120
        assert len(person["name"]) <= 20
        assert set(person["tags"]) <= {"poet", "king"}
    assert all(re.fullmatch(NAME, text) for text in texts[2:4])
    assert all(text.strip("()") in CITIES for text in texts[4:6])
    assert set(texts[6:]) <= set(CITIES)
