"""Whatever schema, vocabulary and logits there are: an answer that ends is JSON that is valid by the schema."""

from __future__ import annotations

import json
import random
from array import array
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from executor.guides.guides import Guides, follow
from executor.sampling.samplers import TorchSampler
from executor.sequences import SequenceState
from executor.step import SamplingParams
from tests.executor.vocabularies import EOS, random_vocabulary

_NAMES = st.text("abé🐙 ", min_size=1, max_size=3)
_SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda least, room: {"type": "integer", "minimum": least, "maximum": least + room}, *[st.integers(0, 99)] * 2
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 4)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.one_of(_NAMES, st.integers(), st.none()), min_size=1, max_size=3)
    ),
)


def _containers(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def an_object(properties: dict[str, Any], optional: int) -> dict[str, Any]:
        required = list(properties)[optional:]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def an_array(items: dict[str, Any], least: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "minItems": least, "maxItems": 2}

    return st.one_of(
        st.builds(an_object, st.dictionaries(_NAMES, schemas, max_size=2), st.integers(0, 1)),
        st.builds(an_array, schemas, st.integers(0, 2)),
        st.builds(lambda some: {"anyOf": some}, st.lists(schemas, min_size=1, max_size=2)),
    )


def _is_valid(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_is_valid(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return any(value == each and type(value) is type(each) for each in schema["enum"])
    match schema["type"]:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "array":
            fits = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return fits and all(_is_valid(each, schema["items"]) for each in value)
    properties = schema["properties"]
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(properties)
        and all(_is_valid(each, properties[name]) for name, each in value.items())
    )


@settings(max_examples=25, deadline=None)
@given(schema=st.recursive(_SCALARS, _containers, max_leaves=5), seed=st.integers(0, 2**32), size=st.integers(260, 330))
def test_what_ends_is_valid(schema: dict[str, Any], seed: int, size: int) -> None:
    rng, vocab_size = random.Random(seed), size + 5
    vocabulary, contents = random_vocabulary(rng, size)
    compact = schema | {"x-guidance": {"whitespace_flexible": False}}
    params = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=seed)
    sequence = SequenceState(0, array("q", [5, 9]), 2, 2, array("q"), 0, params)
    sequence.guide = Guides(lambda: vocabulary, vocab_size).start(
        LLMatcher.grammar_from_json_schema(json.dumps(compact))
    )
    generator, sampler = torch.Generator().manual_seed(seed), TorchSampler()
    while sequence.token_ids[-1] != EOS and sequence.num_output_tokens < 200:
        assert follow([sequence]) == []
        logits = 3 * torch.randn(1, vocab_size, generator=generator)
        sequence.token_ids.append(sampler.sample(logits, [0], [sequence]).finish().token_ids[0])
    if sequence.token_ids[-1] == EOS:
        text = b"".join(contents[token] for token in sequence.token_ids[2:-1]).decode()
        assert _is_valid(json.loads(text), schema), text
