"""What is noted of a request gives the same request again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.output import FinishReason, TokenLogprobs
from gateway.prepared import BeamSearch, PreparedGuide, PreparedRequest
from gateway.request import EarlyStopping
from gateway.scope import Scope, ScopeSpan
from octavo.v1 import common_pb2, kvmanager_pb2
from services.gateway.received import Update
from services.gateway.record_codec import decode_request, decode_tokens, encode_request, encode_tokens
from tests.services.gateway.prepared_requests import prepared

PLAIN = prepared()
EVERYTHING = prepared(
    prompt=list(range(300)),
    stop=("one", "日本"),
    spans=(ScopeSpan(100, Scope(b"\x00a", 0, "shared:docs")), ScopeSpan(200, Scope(b"b", 3, "acme"))),
    n=5,
    kept=2,
    shows_logprobs=True,
    min_tokens=3,
    stop_token_ids=(1, 2, 3),
    priority=-7,
    report_progress=True,
    response_interval=0.25,
)
EVERYTHING = replace(
    EVERYTHING,
    sampling=replace(
        EVERYTHING.sampling,
        temperature=0.75,
        top_p=0.5,
        top_k=40,
        min_p=0.25,
        seed=2**64 - 1,
        logprobs=0,
        skip_special_tokens=False,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        repetition_penalty=2.0,
        logit_bias={5: -100.0, 6: 2.5},
        guide=PreparedGuide('{"grammars": [{"lark_grammar": "start: /[日a]+/"}]}'),
    ),
)
BEAMS = prepared(n=2, kept=2, beam=BeamSearch(4, 0.5, EarlyStopping.NEVER))


@pytest.mark.parametrize("request_", [PLAIN, EVERYTHING, BEAMS, prepared(best_of=4)])
def test_a_request(request_: PreparedRequest) -> None:
    assert decode_request(encode_request(request_, None), 0.0) == request_


@pytest.mark.parametrize(("now", "left"), [(90.0, 10_000_000), (99.75, 250_000), (100.0, 1), (5000.0, 1)])
def test_its_time_goes_on(now: float, left: int) -> None:
    data = encode_request(prepared(timeout_us=1), 100.0)
    assert decode_request(data, now) == prepared(timeout_us=left)


def test_tokens_and_the_end() -> None:
    updates = [
        Update(0, 0, [1, 2], [TokenLogprobs(-0.5, [1, 7], [-0.5, -1.0]), TokenLogprobs(-2.0, [], [])]),
        Update(2, 9, [3], [], FinishReason.STOP, -0.75),
    ]
    end = kvmanager_pb2.RequestEnd(usage=common_pb2.Usage(cached_tokens=4))
    read, no_end = decode_tokens(encode_tokens(updates, None))
    assert (read, no_end) == (updates, None)
    assert decode_tokens(encode_tokens([], end)) == ([], end)
