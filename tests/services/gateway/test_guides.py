"""Guides at the gateway's door: what goes on to the KV manager, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.client import OctavoError
from octavo.v1 import common_pb2
from tests.services.gateway.gateway_bench import bench, ids, one_answer, save_bytes_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes_tokenizer(tmp_path_factory.mktemp("model"), eos="ÿ")


@pytest.mark.parametrize(
    "given",
    [
        {"json_schema": {"type": "object", "title": "the text"}},
        {"regex": "(the text)+"},
        {"grammar": 'start: "the text"'},
        {"choice": ["the text", "another"]},
    ],
)
async def test_executors_get_a_grammar_of_each(model: Path, given: dict[str, Any]) -> None:
    async with bench(model, one_answer) as here:
        await here.ask("abc", **given)
        sent = here.submission
    assert "the text" in json.dumps(json.loads(sent.sampling.guide.grammar))
    assert list(sent.stop_token_ids) == ids("ÿ")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"guide": common_pb2.Guide()}, "sampling.guide", "must be a JSON schema"),
    ({"json_schema": "{"}, "sampling.guide.json_schema", "is not JSON"),
    ({"json_schema": '{"const": "\\ud800"}'}, "sampling.guide.json_schema", "is not JSON"),
    ({"json_schema": '{"const": 1e999}'}, "sampling.guide.json_schema", "is not JSON"),
    ({"json_schema": {"enum": []}}, "sampling.guide.json_schema", "Unsatisfiable"),
    ({"json_schema": {"$ref": "http://127.0.0.1/x"}}, "sampling.guide.json_schema", "http://127.0.0.1/x"),
    ({"regex": "(a"}, "sampling.guide.regex", "unclosed group"),
    ({"regex": "x" * 20_000}, "sampling.guide.regex", "at most 16384 bytes, has 20000"),
    ({"grammar": "start: other"}, "sampling.guide.grammar", "other"),
    ({"choice": ["a", ""]}, "sampling.guide.choice.choices[1]", "must not be empty"),
    ({"regex": "a", "beam_width": 2, "temperature": 0}, "sampling.beam_width", "does not go with a guide"),
    ({"regex": "a", "ignore_eos": True}, "sampling.ignore_eos", "does not go with a guide"),
    ({"regex": "a", "min_tokens": 2}, "sampling.min_tokens", "does not go with a guide"),
]


async def test_what_cannot_be_followed_is_refused_by_name(model: Path) -> None:
    async with bench(model, one_answer) as here:
        for given, field, message in REFUSED:
            with pytest.raises(OctavoError, match=message) as error:
                await here.ask("abc", **given)
            assert (error.value.status, error.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert here.kvmanager.submissions == []
