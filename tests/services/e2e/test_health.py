"""grpc.health.v1, server reflection, and the end by a signal, of each of the three processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from octavo.client import OctavoError
from octavo.v1 import inference_pb2, inference_pb2_grpc
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import CHANNEL_OPTIONS, NOT_SERVING, PATIENCE, SERVING, Server, eventually
from tests.services.e2e.stack import Stack
from tests.services.e2e.tiny_model import Reference

SERVICES = {
    "gateway": "octavo.v1.GenerationService",
    "kvmanager": "octavo.v1.KVManagerService",
    "executor": "octavo.v1.ExecutorService",
}


class Watch:
    """A health watch, as load balancers keep one open: every status in order, on a thread."""

    def __init__(self, channel: grpc.Channel, service: str = "") -> None:
        self.seen: list[int] = []
        self.ended = False
        self._call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                self.seen.append(response.status)
        except grpc.RpcError:
            pass
        self.ended = True

    def wait_for(self, *statuses: int) -> None:
        eventually(lambda: self.seen == list(statuses), what=f"{statuses}, not {self.seen}")

    def cancel(self) -> None:
        self._call.cancel()


@contextmanager
def channel_to(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        yield channel


@pytest.mark.parametrize("name", SERVICES)
def test_names_and_reflection(stack: Stack, name: str) -> None:
    server: Server = getattr(stack, name)
    assert server.health("") == SERVING
    assert server.health(SERVICES[name]) == SERVING
    assert server.health("octavo.v1.Nothing") == grpc.StatusCode.NOT_FOUND
    with channel_to(server) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICES[name], "grpc.health.v1.Health"} <= set(database.get_services())
        file = database.FindFileContainingSymbol(SERVICES[name])
        assert SERVICES[name].rpartition(".")[2] in {service.name for service in file.service}


def test_not_serving_until_the_next_one_is_there(make_stack: MakeStack) -> None:
    """A gateway waits for its KV manager, that for its executor, whatever the order they start in."""
    stack = make_stack()
    stack.gateway.kill()
    stack.kvmanager.kill()
    stack.gateway.start()
    stack.gateway.wait_until_listening()
    assert stack.gateway.health() == NOT_SERVING
    assert stack.gateway.health(SERVICES["gateway"]) == NOT_SERVING
    error = stack.caller.start("x").error()
    assert error.status == grpc.StatusCode.UNAVAILABLE
    assert "KV manager" in error.message
    assert error.retry_after

    stack.executor.pause()
    stack.kvmanager.start()
    stack.kvmanager.wait_until_listening()
    assert stack.kvmanager.health() == NOT_SERVING
    assert stack.kvmanager.health(SERVICES["kvmanager"]) == NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stack.memory_map()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    eventually(lambda: "executor" in stack.caller.start("x").error().message, what="a word about the executor")
    assert stack.gateway.health() == NOT_SERVING

    stack.executor.go_on()
    stack.gateway.wait_until_serving()
    assert stack.kvmanager.health(SERVICES["kvmanager"]) == SERVING
    assert stack.gateway.health(SERVICES["gateway"]) == SERVING
    assert stack.caller.generate("x", max_tokens=1).complete


def test_the_gateway_drains(make_stack: MakeStack, reference: Reference) -> None:
    """At SIGTERM: NOT_SERVING first, running streams to their end, new calls refused, exit code 0."""
    stack = make_stack()
    with channel_to(stack.gateway) as channel:
        watches = [Watch(channel, service) for service in ("", SERVICES["gateway"])]
        for watch in watches:
            watch.wait_for(SERVING)
        calls = [stack.caller.start(f"drains {i}", max_tokens=300, ignore_eos=True) for i in range(3)]
        for call in calls:
            call.wait_for_tokens(3)
        stack.executor.pause()
        stack.gateway.terminate()
        for watch in watches:
            watch.wait_for(SERVING, NOT_SERVING)
            watch.cancel()
        late = OctavoError.from_rpc(_failure_of_a_new_call(stack.gateway))
        assert late.status == grpc.StatusCode.UNAVAILABLE
        assert stack.gateway.running
        stack.executor.go_on()
        for i, call in enumerate(calls):
            assert call.result().token_ids == reference.greedy(reference.encode(f"drains {i}"), 300)
    assert stack.gateway.wait() == 0
    stack.wait_until_idle()


def _failure_of_a_new_call(server: Server) -> grpc.RpcError:
    """Of a client that comes now."""
    with channel_to(server) as channel:
        stub = inference_pb2_grpc.GenerationServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListModels(inference_pb2.ListModelsRequest(), timeout=10)
    return caught.value


@pytest.mark.parametrize("name", SERVICES)
def test_an_open_health_watch_does_not_hold_up_the_end(make_stack: MakeStack, name: str) -> None:
    """Load balancers watch for as long as the server is there; draining must not wait for them."""
    stack = make_stack()
    server: Server = getattr(stack, name)
    with channel_to(server) as channel:
        watch = Watch(channel)
        watch.wait_for(SERVING)
        server.terminate()
        assert server.wait(10) == 0
        eventually(lambda: watch.ended)
        assert watch.seen == [SERVING, NOT_SERVING]


def test_the_kv_manager_drains(make_stack: MakeStack, reference: Reference) -> None:
    stack = make_stack(gateway={"kvmanager_patience": 0.5})
    with channel_to(stack.kvmanager) as channel:
        watch = Watch(channel, SERVICES["kvmanager"])
        watch.wait_for(SERVING)
        calls = [stack.caller.start(f"drains {i}", max_tokens=300, ignore_eos=True) for i in range(3)]
        for call in calls:
            call.wait_for_tokens(3)
        stack.executor.pause()
        stack.kvmanager.terminate()
        watch.wait_for(SERVING, NOT_SERVING)
        too_late = stack.caller.start("too late")
        stack.executor.go_on()
        for i, call in enumerate(calls):
            assert call.result().token_ids == reference.greedy(reference.encode(f"drains {i}"), 300)
    assert stack.kvmanager.wait() == 0
    error = too_late.error()
    assert error.status == grpc.StatusCode.UNAVAILABLE
    assert error.retry_after
    stack.gateway.wait_until_not_serving()


def test_the_executor_ends_and_returns(make_stack: MakeStack, reference: Reference) -> None:
    """Its streams end after the steps under way; requests wait for its return and lose nothing."""
    stack = make_stack()
    calls = [stack.caller.start(f"waits {i}", max_tokens=300, ignore_eos=True) for i in range(3)]
    for call in calls:
        call.wait_for_tokens(3)
    stack.executor.terminate()
    assert stack.executor.wait() == 0
    stack.gateway.wait_until_not_serving()
    assert not any(call.over for call in calls)
    stack.executor.start()
    for i, call in enumerate(calls):
        assert call.result().token_ids == reference.greedy(reference.encode(f"waits {i}"), 300)
    stack.gateway.wait_until_serving()
    stack.wait_until_idle()


def test_a_second_signal_ends_a_drain(make_stack: MakeStack) -> None:
    stack = make_stack()
    call = stack.caller.start("never ends", max_tokens=400, ignore_eos=True)
    call.wait_for_tokens(1)
    stack.executor.pause()
    stack.gateway.terminate()
    stack.gateway.wait_until_not_serving()
    assert stack.gateway.running
    stack.gateway.terminate()
    assert stack.gateway.wait(10) != 0
    assert call.error().status == grpc.StatusCode.UNAVAILABLE
    stack.executor.go_on()
    stack.wait_until_idle()


def test_a_drain_has_an_end(make_stack: MakeStack) -> None:
    """Streams that don't end within the time that draining may take are cut off, and say so."""
    stack = make_stack(gateway={"drain_seconds": 0.2})
    call = stack.caller.start("never ends", max_tokens=400, ignore_eos=True)
    call.wait_for_tokens(1)
    stack.executor.pause()
    stack.gateway.terminate()
    assert call.error().status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert stack.gateway.wait(PATIENCE) == 0
    stack.executor.go_on()
    stack.wait_until_idle()
