"""Status messages as the page reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from octavo.v1 import monitoring_pb2


def encode_status(message: monitoring_pb2.WatchStatusResponse, tenant: str | None) -> dict[str, Any]:
    """The newest status whole, and all of them as columns.

    Args:
        tenant: whose view it is; None: all.
    """
    return {
        "tenant": tenant,
        "samples": _columns([*message.history, message.status]),
        "status": MessageToDict(message.status, always_print_fields_with_no_presence=True),
    }


def _columns(statuses: Sequence[monitoring_pb2.Status]) -> dict[str, list[float]]:
    """What changes over time, one row a status. Times in ms since 1970; `generated` and what follows since start."""
    devices = [[executor.device for executor in status.executors] for status in statuses]
    return {
        "time": [status.time.ToMilliseconds() for status in statuses],
        "running": [status.running_requests for status in statuses],
        "waiting": [status.waiting_requests for status in statuses],
        "swapped": [status.swapped_requests for status in statuses],
        "sequences": [status.batch_sequences for status in statuses],
        "prefill": [status.batch_prefill_tokens for status in statuses],
        "decode": [status.batch_decode_tokens for status in statuses],
        "blocks": [sum(device.num_blocks for device in each) for each in devices],
        "used": [sum(device.referenced_blocks for device in each) for each in devices],
        "cached": [sum(device.cached_blocks for device in each) for each in devices],
        "generated": [status.counters.generated_tokens for status in statuses],
        "prompt": [status.counters.prompt_tokens for status in statuses],
        "hits": [status.counters.cached_prompt_tokens for status in statuses],
        "preemptions": [status.counters.preemptions for status in statuses],
    }
