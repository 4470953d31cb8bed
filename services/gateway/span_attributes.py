"""What the span of a request says: GenAI semantic conventions of OpenTelemetry."""

from __future__ import annotations

from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2
from services.gateway.generation import Generation
from services.telemetry.tracing import Attributes

PREFIX_MATCH_ENDS = {
    number: name.removeprefix("PREFIX_MATCH_END_").lower() for name, number in common_pb2.PrefixMatchEnd.items()
}


def request_attributes(request: PreparedRequest, generation: Generation) -> Attributes:
    """Of a request that is over."""
    return {
        "gen_ai.response.id": request.request_id,
        "gen_ai.response.model": request.model,
        "gen_ai.response.finish_reasons": generation.finish_reasons,
        **usage_attributes(generation.usage),
    }


def usage_attributes(usage: common_pb2.Usage) -> Attributes:
    """Token counts under their present and their former names."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": usage.completion_tokens,
        "octavo.cached_tokens": usage.cached_tokens,
        "octavo.prefix_match_end": PREFIX_MATCH_ENDS.get(usage.prefix_match_end, "unspecified"),
    }
