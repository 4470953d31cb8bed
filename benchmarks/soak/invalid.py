"""Requests that are refused, with the status and the field of the refusal."""

from typing import Any

from benchmarks.soak.prompts import NAMESPACE, Prompts
from octavo.client import Segment, generate_request
from octavo.v1 import inference_pb2

Refusal = tuple[inference_pb2.GenerateRequest, str, str]


def invalid_requests(prompts: Prompts, model: inference_pb2.Model) -> list[Refusal]:
    """One for each rule."""
    text = prompts.text(8)
    wrong = [(generate_request(text, sampling=values), f"sampling.{name}") for name, values in _wrong_sampling(model)]
    wrong += _wrong_prompts(model)
    wrong += [
        (generate_request(text, priority=101), "priority"),
        (generate_request(text, cache_scope=inference_pb2.CacheScope()), "cache_scope"),
        (generate_request(text, request_id="x" * 129), "request_id"),
    ]
    refusals = [(request, "INVALID_ARGUMENT", field) for request, field in wrong]
    elsewhere = f"shared:not-{NAMESPACE}"
    return [
        *refusals,
        (generate_request(text, model="no-such-model"), "NOT_FOUND", "model"),
        (generate_request(text, cache_scope=elsewhere), "PERMISSION_DENIED", "cache_scope.shared"),
        (
            generate_request([Segment(text), Segment(text, elsewhere)]),
            "PERMISSION_DENIED",
            "prompt.segmented.segments[1].cache_scope.shared",
        ),
    ]


def _wrong_sampling(model: inference_pb2.Model) -> list[tuple[str, dict[str, Any]]]:
    """Field and sampling parameters."""
    longest, vocab_size = model.max_model_len, model.vocab_size
    return [
        ("temperature", {"temperature": -0.5}),
        ("top_p", {"top_p": 0.0}),
        ("top_k", {"top_k": -1}),
        ("min_p", {"min_p": 1.5}),
        ("n", {"n": 65}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": longest}),
        # Each of them fits; so many such answers at once do not, though there is a block for each, pins or not.
        ("max_tokens", {"n": 16, "max_tokens": longest - 200}),
        ("max_tokens", {"beam_width": 32, "max_tokens": longest - 200}),
        ("min_tokens", {"max_tokens": 4, "min_tokens": 5}),
        ("logprobs", {"logprobs": 21}),
        ("stop[1]", {"stop": ["fine", ""]}),
        ("stop_token_ids[0]", {"stop_token_ids": [vocab_size]}),
        ("presence_penalty", {"presence_penalty": 2.5}),
        ("frequency_penalty", {"frequency_penalty": -2.5}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        (f"logit_bias[{vocab_size}]", {"logit_bias": {vocab_size: 1.0}}),
        ("logit_bias[7]", {"logit_bias": {7: 101.0}}),
        ("best_of", {"n": 3, "best_of": 2}),
        ("best_of", {"best_of": 65}),
        ("beam_width", {"beam_width": 33}),
        ("n", {"beam_width": 2, "n": 3}),
        ("temperature", {"beam_width": 2, "temperature": 0.7}),
        ("best_of", {"beam_width": 2, "best_of": 2}),
        ("logprobs", {"beam_width": 2, "logprobs": 1}),
        ("stop", {"beam_width": 2, "stop": ["x"]}),
        ("length_penalty", {"beam_width": 2, "length_penalty": 11.0}),
        ("length_penalty", {"length_penalty": 1.0}),
        ("early_stopping", {"early_stopping": "never"}),
        ("early_stopping", {"beam_width": 2, "early_stopping": 9}),
    ]


def _wrong_prompts(model: inference_pb2.Model) -> list[tuple[inference_pb2.GenerateRequest, str]]:
    mixed = generate_request([Segment("text"), Segment([1, 2])])
    nothing = inference_pb2.Prompt(segmented=inference_pb2.SegmentedPrompt())
    return [
        (generate_request(""), "prompt.text"),
        (inference_pb2.GenerateRequest(), "prompt"),
        (generate_request([1, model.vocab_size]), "prompt.tokens.token_ids[1]"),
        (generate_request([1000] * model.max_model_len), "prompt.tokens"),
        (generate_request(nothing), "prompt.segmented.segments"),
        (generate_request([Segment("")]), "prompt.segmented"),
        (mixed, "prompt.segmented.segments[1]"),
    ]
