"""Requests, their timelines and the prefix tree as the page reads them. All times in ms, points in time since 1970.

By hand and not by `json_format`, which would hold the gateway's event loop for some ten milliseconds where many run.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from octavo.v1 import monitoring_pb2

STATES = {
    monitoring_pb2.REQUEST_STATE_WAITING: "waiting",
    monitoring_pb2.REQUEST_STATE_RUNNING: "running",
    monitoring_pb2.REQUEST_STATE_SWAPPED: "swapped",
    monitoring_pb2.REQUEST_STATE_ENDED: "ended",
}
KINDS = {
    monitoring_pb2.DECISION_KIND_QUEUED: "queued",
    monitoring_pb2.DECISION_KIND_WAITED: "waited",
    monitoring_pb2.DECISION_KIND_ADMITTED: "admitted",
    monitoring_pb2.DECISION_KIND_PREFILL: "prefill",
    monitoring_pb2.DECISION_KIND_FIRST_TOKEN: "first token",
    monitoring_pb2.DECISION_KIND_PREEMPTED: "preempted",
    monitoring_pb2.DECISION_KIND_FINISHED: "finished",
}


def encode_request(view: monitoring_pb2.RequestView) -> dict[str, Any]:
    """One request, without its blocks."""
    return {
        "id": view.request_id,
        "tenant": view.tenant,
        "state": STATES.get(view.state, "unknown"),
        "reason": view.reason,
        "executor": view.executor,
        "arrived": view.arrived.ToMilliseconds(),
        "ended": view.ended.ToMilliseconds() if view.HasField("ended") else None,
        "prompt": view.prompt_tokens,
        "cached": view.cached_tokens,
        "computed": view.computed_tokens,
        "output": view.output_tokens,
        "maxTokens": view.max_tokens,
        "priority": view.priority,
        "preemptions": view.preemptions,
        "lengths": [sequence.num_tokens for sequence in view.sequences],
    }


def encode_timeline(timeline: monitoring_pb2.Timeline) -> dict[str, Any]:
    """A request's life; times of decisions are those since it arrived."""
    return {
        "request": encode_request(timeline.request),
        "decisions": [_encode_decision(decision) for decision in timeline.decisions],
        "leftOut": timeline.decisions_left_out,
    }


def _encode_decision(decision: monitoring_pb2.Decision) -> dict[str, Any]:
    return {
        "kind": KINDS.get(decision.kind, "unknown"),
        "at": decision.at.ToMicroseconds() / 1000,
        "until": decision.until.ToMicroseconds() / 1000 if decision.HasField("until") else None,
        "reason": decision.reason,
        "executor": decision.executor,
        "step": decision.step,
        "tokens": decision.tokens,
    }


def encode_tree(tree: monitoring_pb2.GetPrefixTreeResponse) -> dict[str, Any]:
    """The prefix tree's nodes, parents first, and how often prompts were found in it."""
    return {
        "nodes": [_encode_node(node) for node in tree.nodes],
        "leftOut": tree.nodes_left_out,
        "scopes": [_plain(use) for use in tree.scopes],
    }


def _encode_node(node: monitoring_pb2.PrefixNode) -> dict[str, Any]:
    return _plain(node) | {
        "identity_prefix": node.identity_prefix.hex(),
        "parent_identity_prefix": node.parent_identity_prefix.hex(),
    }


def _plain(message: Message) -> dict[str, Any]:
    """A message of plain fields under their names."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
