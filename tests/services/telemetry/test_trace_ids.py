"""Which traces are sampled."""

from __future__ import annotations

import pytest

from octavo.v1 import common_pb2
from services.telemetry.tracing import sampled_trace_id

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (f"00-{TRACE_ID}-b7ad6b7169203331-01", TRACE_ID),
        (f"00-{TRACE_ID}-b7ad6b7169203331-03", TRACE_ID),
        (f"01-{TRACE_ID}-b7ad6b7169203331-01-more", TRACE_ID),
        (f"00-{TRACE_ID}-b7ad6b7169203331-00", ""),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        (f"00-{TRACE_ID.upper()}-b7ad6b7169203331-01", ""),
        ('00-x"} 1', ""),
        ("", ""),
    ],
)
def test_of_what_a_client_says(traceparent: str, trace_id: str) -> None:
    assert sampled_trace_id(common_pb2.TraceContext(traceparent=traceparent)) == trace_id


def test_of_a_request_without_a_trace() -> None:
    assert sampled_trace_id(None) == ""
