"""One trace for each request across the three processes, as a collector sees it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.otlp_receiver import OtlpReceiver, Span, find_rotel
from tests.services.e2e.processes import Processes, eventually
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.tiny_model import Reference

GATEWAY, KVMANAGER, EXECUTOR = "octavo-gateway", "octavo-kvmanager", "octavo-executor"
SAMPLED, UNSAMPLED = "01", "00"
SLACK_NS = 2_000_000
"""Two processes read one clock, but the KV manager by way of its monotonic one."""


def new_trace(flags: str = SAMPLED) -> tuple[str, str, dict[str, str]]:
    """A trace id, the client's span id in it, and the metadata that says so."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, {"traceparent": f"00-{trace_id}-{span_id}-{flags}"}


@pytest.fixture(scope="module")
def receiver(processes: Processes) -> Iterator[OtlpReceiver]:
    program = find_rotel()
    if program is None:
        pytest.skip("the package rotel, an OTLP collector, is not installed")
    receiver = OtlpReceiver(processes, program)
    receiver.start()
    yield receiver
    receiver.kill()


@pytest.fixture(scope="module")
def traced_stack(processes: Processes, model: Path, receiver: OtlpReceiver) -> Iterator[Stack]:
    """Its budget of 32 tokens a step cuts prompts into chunks. Spans leave it soon after they end."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    kvmanager = {"max_batched_tokens": 32, "max_sequences": 8}
    stack = Stack(processes, model, make_executor(processes, model, environment), environment, kvmanager=kvmanager)
    stack.start()
    yield stack
    stack.close()
    stack.executor.kill()


def spans_of(receiver: OtlpReceiver, trace_id: str, complete: Callable[[list[Span]], bool]) -> list[Span]:
    """The spans of one trace, when all that are wanted are there, in the order of their start."""

    def look() -> list[Span]:
        spans = [span for span in receiver.spans() if span.trace_id == trace_id]
        return spans if complete(spans) else []

    return sorted(eventually(look, what=f"spans of trace {trace_id}"), key=lambda span: span.start)


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def number(span: Span, attribute: str) -> int:
    return int(span.attributes[attribute].removeprefix("Int(").removesuffix(")"))


def from_everybody(spans: list[Span]) -> bool:
    """Each process exports for itself, a request's spans together."""
    names = {span.name for span in spans}
    return names >= {"chat tiny", "decode", "executor.step"}


def test_one_trace_through_three_processes(traced_stack: Stack, receiver: OtlpReceiver, reference: Reference) -> None:
    trace_id, client_span, metadata = new_trace()
    prompt = reference.encode("a prompt of several chunks " * 6)
    answer = traced_stack.caller.generate(prompt, max_tokens=70, ignore_eos=True, metadata=metadata)

    def complete(spans: list[Span]) -> bool:
        steps = {number(span, "octavo.step") for span in named(spans, "executor.step")}
        return from_everybody(spans) and {number(span, "octavo.step") for span in named(spans, "prefill")} <= steps

    spans = spans_of(receiver, trace_id, complete)
    services = {(span.service, span.name) for span in spans}
    assert services == {
        (GATEWAY, "chat tiny"),
        (KVMANAGER, "queue"),
        (KVMANAGER, "prefill"),
        (KVMANAGER, "decode"),
        (EXECUTOR, "executor.step"),
    }
    (chat,), (queue,), (decode,) = (named(spans, name) for name in ("chat tiny", "queue", "decode"))
    prefills, steps = named(spans, "prefill"), named(spans, "executor.step")

    assert chat.parent_id == client_span
    assert {span.parent_id for span in spans if span is not chat} == {chat.span_id}
    assert len({span.span_id for span in spans}) == len(spans)
    assert chat.kind == "SPAN_KIND_SERVER"
    assert {span.status for span in spans} == {"STATUS_CODE_UNSET"}
    expected = {
        "gen_ai.operation.name": "Str(chat)",
        "gen_ai.request.model": "Str(tiny)",
        "gen_ai.response.model": "Str(tiny)",
        "gen_ai.response.id": f"Str({answer.request_id})",
        "gen_ai.response.finish_reasons": "Slice(Str(length))",
        "gen_ai.usage.input_tokens": f"Int({len(prompt)})",
        "gen_ai.usage.prompt_tokens": f"Int({len(prompt)})",
        "gen_ai.usage.output_tokens": "Int(70)",
        "gen_ai.usage.completion_tokens": "Int(70)",
    }
    assert chat.attributes.items() >= expected.items()

    assert len(prefills) == -(-len(prompt) // 32)
    assert sum(number(span, "octavo.tokens") for span in prefills) == len(prompt)
    assert number(decode, "octavo.completion_tokens") == 70
    assert {number(span, "octavo.step") for span in prefills} <= {number(span, "octavo.step") for span in steps}

    assert all(span.start <= span.end for span in spans)
    in_order = [chat.start, queue.start, queue.end, prefills[0].start, prefills[-1].end, decode.end, chat.end]
    assert all(before <= after + SLACK_NS for before, after in pairwise(in_order))
    assert decode.start <= decode.end
    for step in steps:
        assert chat.start <= step.start + SLACK_NS
        assert step.end <= chat.end + SLACK_NS


def test_a_step_of_several_requests_is_linked_to_all(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    """Another request has the steps that are under way; both traced prompts come into the next one."""
    stack = traced_stack
    traces = [new_trace() for _ in range(2)]
    ids = {trace[0] for trace in traces}
    with stack.executor.held():
        calls = [stack.caller.start("first", max_tokens=3, metadata=new_trace(UNSAMPLED)[2])]
        stack.wait_for_requests(running=1)
        calls += [stack.caller.start("together", max_tokens=3, ignore_eos=True, metadata=trace[2]) for trace in traces]
        stack.wait_for_requests(running=1, waiting=2)
    for call in calls:
        assert call.result().complete

    def has_both(spans: list[Span]) -> bool:
        return any(from_everybody([span for span in spans if span.trace_id == trace_id]) for trace_id in ids)

    spans = eventually(lambda: found if has_both(found := receiver.spans()) else [], what="the step's span")
    (step,) = [span for span in spans if span.name == "executor.step" and span.trace_id in ids]
    assert [link["Trace ID"] for link in step.links] == [*(ids - {step.trace_id})]


def test_an_unsampled_request_leaves_no_spans(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    unsampled, _, metadata = new_trace(UNSAMPLED)
    assert traced_stack.caller.generate("unseen", max_tokens=40, ignore_eos=True, metadata=metadata).complete
    # Exporters keep the order: when a later request's spans are here, those of the one before are not to come.
    sampled, _, metadata = new_trace()
    assert traced_stack.caller.generate("seen", max_tokens=40, ignore_eos=True, metadata=metadata).complete
    spans_of(receiver, sampled, from_everybody)
    assert not [span for span in receiver.spans() if span.trace_id == unsampled]


def test_a_request_without_a_trace_gets_its_own(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    answer = traced_stack.caller.generate("nobody asked", max_tokens=3, ignore_eos=True)

    def chats() -> list[Span]:
        name = f"Str({answer.request_id})"
        return [span for span in receiver.spans() if span.attributes.get("gen_ai.response.id") == name]

    (chat,) = eventually(chats)
    assert chat.parent_id == ""
    spans_of(receiver, chat.trace_id, from_everybody)


@pytest.mark.parametrize("header", ["", "garbage", "00-00000000000000000000000000000000-0000000000000000-01"])
def test_a_broken_traceparent_is_no_reason_to_refuse(traced_stack: Stack, header: str) -> None:
    metadata = {"traceparent": header, "tracestate": "a=b,,="}
    assert traced_stack.caller.generate("x", max_tokens=1, metadata=metadata).complete


def test_refused_and_cancelled_requests_show_why(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    refused, _, metadata = new_trace()
    traced_stack.caller.start("x", top_p=7, metadata=metadata).error()
    (span,) = spans_of(receiver, refused, lambda spans: len(spans) == 1)
    assert (span.status, span.attributes["error.type"]) == ("STATUS_CODE_ERROR", "Str(INVALID_ARGUMENT)")
    assert "top_p" in span.status_message

    cancelled, _, metadata = new_trace()
    call = traced_stack.caller.start("x", n=4, max_tokens=400, ignore_eos=True, metadata=metadata)
    call.wait_for_tokens(4)
    call.cancel()
    spans = spans_of(receiver, cancelled, from_everybody)
    (chat,) = named(spans, "chat tiny")
    assert (chat.status, chat.attributes["error.type"]) == ("STATUS_CODE_ERROR", "Str(CANCELLED)")
    traced_stack.wait_until_idle()


def test_a_lost_executor_shows_as_preemption(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    trace_id, _, metadata = new_trace()
    call = traced_stack.caller.start("lost", max_tokens=300, ignore_eos=True, metadata=metadata)
    call.wait_for_tokens(3)
    traced_stack.executor.kill()
    traced_stack.executor.start()
    call.result()
    spans = spans_of(receiver, trace_id, from_everybody)
    (preemption,) = named(spans, "preemption")
    before, after = named(spans, "decode")
    assert before.end <= preemption.start + SLACK_NS
    assert preemption.end <= after.start + SLACK_NS
    assert "executor lost" in preemption.attributes["octavo.waited_for"]


def test_traces_are_off_without_an_endpoint(make_stack: MakeStack) -> None:
    """Nothing of OpenTelemetry's is even loaded: it takes half a second at start."""
    stack = make_stack(environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert stack.caller.generate("x", max_tokens=1, metadata=new_trace()[2]).complete
    for server in (stack.gateway, stack.kvmanager):
        assert "services.telemetry.tracing" in server.output()
        assert "opentelemetry" not in server.output()


def test_serving_goes_on_without_the_collector(make_stack: MakeStack, reference: Reference) -> None:
    """And the end does not wait for it."""
    stack = make_stack(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"})
    answer = stack.caller.generate("no collector", max_tokens=40, ignore_eos=True, metadata=new_trace()[2])
    assert answer.token_ids == reference.greedy(reference.encode("no collector"), 40)
    for server in (stack.gateway, stack.kvmanager):
        server.terminate()
        assert server.wait(10) == 0


def test_a_request_over_http_is_in_its_caller_s_trace(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    trace_id, client_span, metadata = new_trace()
    body = {"prompt": "a prompt", "max_tokens": 5, "ignore_eos": True, "stream": True}
    url = f"http://{traced_stack.gateway.http_address}/v1/completions"
    assert httpx.post(url, json=body, headers=dict(metadata), timeout=30).status_code == 200
    (chat,) = named(spans_of(receiver, trace_id, from_everybody), "chat tiny")
    assert chat.parent_id == client_span
