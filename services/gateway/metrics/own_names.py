"""The gateway's metrics by their own names. docs/metrics.md lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from services.gateway.metrics.calls import CallMetrics
from services.telemetry.metrics import Metrics

OTHERS = "(others)"
"""All tenants that are not in the directory; none can be called that."""

_METRICS = Metrics("octavo_gateway_", {})


@dataclass(frozen=True, slots=True)
class GroupState:
    """The way to one group of executors.

    Attributes:
        group: Its name; its number where nobody has told.
        attached: To a KV manager that takes requests.
        ready: It has an executor.
        requests: Of this gateway, that it has.
    """

    group: str
    attached: bool
    ready: bool
    requests: int


@dataclass(frozen=True, slots=True)
class GatewayState:
    """How a gateway is at the moment.

    Attributes:
        token_log_lag: Seconds for which tokens have been waiting for the state store to take them.
        unwritten_logs: Requests whose tokens do.
    """

    groups: Sequence[GroupState]
    state_available: bool
    token_log_lag: float
    unwritten_logs: int


def own_families(calls: CallMetrics, state: GatewayState, tenants: Collection[str]) -> Iterator[Metric]:
    """All of them, as they are now.

    Args:
        tenants: Those that are shown one by one.
    """
    yield from _state(state)
    yield from _calls(calls)
    yield from _times(calls)
    yield from _tenants(calls, tenants)


def _state(state: GatewayState) -> Iterator[Metric]:
    groups = state.groups
    yield _METRICS.gauges(
        "kvmanager_attached",
        "1 while this gateway is attached to a group's KV manager.",
        ["group"],
        {(each.group,): each.attached for each in groups},
    )
    yield _METRICS.gauges(
        "group_ready",
        "1 while a group has an executor, or had one until a moment ago.",
        ["group"],
        {(each.group,): each.ready for each in groups},
    )
    yield _METRICS.gauges(
        "group_requests",
        "This gateway's requests that a group has.",
        ["group"],
        {(each.group,): each.requests for each in groups},
    )
    yield _METRICS.gauge("state_available", "1 while the state store is there.", state.state_available)
    yield _METRICS.gauge(
        "token_log_lag_seconds",
        "For how long tokens have been waiting for a state store that does not take them.",
        state.token_log_lag,
    )
    yield _METRICS.gauge(
        "token_log_unwritten_requests",
        "Requests with tokens that are not in the state store yet.",
        state.unwritten_logs,
    )


def _calls(calls: CallMetrics) -> Iterator[Metric]:
    yield _METRICS.gauges(
        "running_requests",
        "Calls that run, by protocol: grpc, openai, vllm, kserve.",
        ["protocol"],
        {(protocol,): count for protocol, count in calls.running.items()},
    )
    yield _METRICS.counters(
        "requests",
        "Calls that ended, by protocol, kind (generate, resume, pin), outcome (ok, cancelled, refused, moved, failed)"
        " and reason: the finish reason, or that of the error.",
        ["protocol", "kind", "outcome", "reason"],
        {key: count for key, count in calls.ended.items()},
    )


def _times(calls: CallMetrics) -> Iterator[Metric]:
    for name, documentation, histogram in (
        ("time_to_first_token_seconds", "From a request's arrival to its first token.", calls.time_to_first_token),
        ("inter_token_seconds", "Between tokens of a sequence, as they come; one for each.", calls.inter_token),
        ("request_seconds", "From an answered request's arrival to its end.", calls.request_time),
        ("queue_seconds", "Before an answered request was first admitted.", calls.queue_time),
        ("prefill_seconds", "From an answered request's admission to its first token.", calls.prefill_time),
        ("decode_seconds", "From an answered request's first token to its end.", calls.decode_time),
        ("preempted_seconds", "For how long an answered request was preempted.", calls.preempted_time),
        ("request_prompt_tokens", "Prompt tokens of an answered request.", calls.request_prompt_tokens),
        (
            "request_generated_tokens",
            "Tokens of an answer, all its sequences together.",
            calls.request_generated_tokens,
        ),
    ):
        yield _METRICS.histogram(name, documentation, histogram)


def _tenants(calls: CallMetrics, tenants: Collection[str]) -> Iterator[Metric]:
    for name, documentation, tokens in (
        ("prompt_tokens", "Prompt tokens of requests that were let in.", calls.prompt_tokens),
        ("cached_tokens", "Prompt tokens of answered requests that were cached.", calls.cached_tokens),
        ("generated_tokens", "Tokens that were handed out.", calls.generated_tokens),
    ):
        yield _METRICS.counters(name, documentation, ["tenant"], _by_tenant(tokens, tenants))
    refused: Counter[tuple[str, ...]] = Counter()
    for (tenant, reason), count in calls.refused.items():
        refused[_shown(tenant, tenants), reason] += count
    yield _METRICS.counters(
        "limit_refusals", "Requests that a limit kept out, by its reason.", ["tenant", "reason"], refused
    )


def _by_tenant(tokens: Mapping[str, int], tenants: Collection[str]) -> Mapping[tuple[str, ...], float]:
    shown: Counter[tuple[str, ...]] = Counter()
    for tenant, count in tokens.items():
        shown[(_shown(tenant, tenants),)] += count
    return shown


def _shown(tenant: str, tenants: Collection[str]) -> str:
    """Whoever says who is calling may name any number of tenants: only known ones have series of their own."""
    return tenant if tenant in tenants else OTHERS
