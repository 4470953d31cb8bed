"""The stack of docker-compose.yml, built and run for real, and talked to from outside."""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
LONG_RUNNING = ("gateway", "kvmanager", "executor", "redis")
INNER = ("kvmanager", "executor", "redis")
ANSWER_TOKENS = 48
LONG_ANSWER_TOKENS = 200

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Stack:
    """A compose project of its own."""

    project: str
    port: int
    http_port: int

    def compose(self, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs ``docker compose`` on this project."""
        return subprocess.run(
            ["docker", "compose", "--project-name", self.project, *arguments],
            cwd=ROOT,
            env={**os.environ, "OCTAVO_PORT": str(self.port), "OCTAVO_HTTP_PORT": str(self.http_port), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
        )

    def run_in(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command in a service's container."""
        return self.compose("exec", "--no-TTY", service, *command, check=check)

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        container = self.compose("ps", "--all", "--quiet", service).stdout.strip()
        (described,) = _engine("inspect", container)
        return described

    def logs(self) -> str:
        return self.compose("ps", "--all").stdout + self.compose("logs", "--no-color", "--tail", "40").stdout


@dataclass(frozen=True)
class Answer:
    """What a stream of responses came to."""

    token_ids: list[int]
    text: str
    chunks: int
    finish_reason: int
    usage: common_pb2.Usage


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    _require_engine()
    stack = Stack(project=f"octavo-test-{secrets.token_hex(4)}", port=free_port(), http_port=free_port())
    try:
        stack.compose("build")
        stack.compose("up", "--detach", "--wait", "--wait-timeout", "300")
        yield stack
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error}\n{error.stderr[-4000:]}\n{stack.logs()}")
    finally:
        stack.compose("down", "--volumes", "--remove-orphans")


@pytest.fixture
def gateway(stack: Stack) -> Iterator[inference_pb2_grpc.GenerationServiceStub]:
    with grpc.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        yield inference_pb2_grpc.GenerationServiceStub(channel)


def test_a_chat_is_streamed_to_a_client_outside(gateway: inference_pb2_grpc.GenerationServiceStub) -> None:
    first = _read(gateway.Generate(_chat("Tell me about lighthouses."), timeout=120))
    assert first.chunks > 5
    assert len(first.text.split()) > 5
    assert first.finish_reason in (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH)
    assert first.usage.completion_tokens == len(first.token_ids)
    assert first.usage.prompt_tokens > first.usage.cached_tokens

    second = _read(gateway.Generate(_chat("Tell me about lighthouses."), timeout=120))
    assert (second.token_ids, second.text) == (first.token_ids, first.text)
    assert second.usage.cached_tokens > 0, "the prompt's blocks were not found again"


def test_the_model_that_is_served_can_be_listed(gateway: inference_pb2_grpc.GenerationServiceStub) -> None:
    (model,) = gateway.ListModels(inference_pb2.ListModelsRequest(), timeout=30).models
    assert model.num_blocks > 0


def test_only_the_gateway_is_published_and_only_to_this_machine(stack: Stack) -> None:
    published = {service: stack.inspect(service)["HostConfig"]["PortBindings"] or {} for service in LONG_RUNNING}
    assert published.pop("gateway") == {
        "50051/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(stack.port)}],
        "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(stack.http_port)}],
    }
    assert not any(published.values())


@pytest.mark.parametrize("service", INNER)
def test_inner_services_are_on_internal_networks_only(stack: Stack, service: str) -> None:
    networks = list(stack.inspect(service)["NetworkSettings"]["Networks"])
    assert networks
    assert all(found["Internal"] for found in _engine("network", "inspect", *networks))


def test_executors_cannot_reach_redis(stack: Stack) -> None:
    state = set(stack.inspect("redis")["NetworkSettings"]["Networks"])
    assert not state & set(stack.inspect("executor")["NetworkSettings"]["Networks"])


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_containers_have_no_privileges(stack: Stack, service: str) -> None:
    assert stack.run_in(service, "id", "-u").stdout.strip() != "0"
    status = dict(
        line.split(":\t", 1)
        for line in stack.run_in(service, "cat", "/proc/1/status").stdout.splitlines()
        if ":\t" in line
    )
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    for folder in ("/", "/opt", "/var", "/usr/local/bin"):
        attempt = stack.run_in(service, "sh", "-c", f"echo > {folder}/probe", check=False)
        assert attempt.returncode != 0
        assert "Read-only file system" in attempt.stderr


@pytest.mark.parametrize("service", ["gateway", "executor"])
def test_servers_cannot_change_the_model(stack: Stack, service: str) -> None:
    attempt = stack.run_in(service, "sh", "-c", "echo > /models/probe", check=False)
    assert "Read-only file system" in attempt.stderr


def test_redis_holds_the_state(stack: Stack) -> None:
    keys = stack.run_in("redis", "redis-cli", "--scan", "--pattern", "octavo:*").stdout.split()
    assert keys


def test_a_model_that_is_not_there_is_named(stack: Stack) -> None:
    absent = stack.compose("run", "--rm", "--no-deps", "model", check=False, OCTAVO_MODEL="/models/absent")
    assert absent.returncode == 2
    assert "there is no /models/absent" in absent.stderr


def test_a_stream_goes_on_when_the_executor_is_killed(
    stack: Stack, gateway: inference_pb2_grpc.GenerationServiceStub
) -> None:
    started = stack.inspect("executor")["State"]["StartedAt"]
    request = _chat("Tell me about bridges.", max_tokens=LONG_ANSWER_TOKENS, ignore_eos=True)

    interrupted = _read(
        gateway.Generate(request, timeout=300), after_first_chunk=lambda: _kill_processes(stack, "executor")
    )

    assert stack.inspect("executor")["State"]["StartedAt"] != started
    undisturbed = _read(gateway.Generate(request, timeout=300))
    assert len(undisturbed.token_ids) == LONG_ANSWER_TOKENS
    assert (interrupted.token_ids, interrupted.text) == (undisturbed.token_ids, undisturbed.text)


@pytest.mark.parametrize("profiles", [("gpu",), ("observability",), ("gpu", "observability")])
def test_every_profile_is_valid(profiles: tuple[str, ...]) -> None:
    _require_engine()
    options = [option for profile in profiles for option in ("--profile", profile)]
    Stack(project="octavo-test-config", port=50051, http_port=8000).compose(*options, "config", "--quiet")


def _require_engine() -> None:
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    for command in (["docker", "compose", "version"], ["docker", "info"]):
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            pytest.skip(f"{' '.join(command)}: {(answer.stderr or answer.stdout).strip()[-200:]}")


def _engine(*arguments: str) -> list[dict[str, Any]]:
    """Runs a ``docker`` command that answers in JSON."""
    answer = subprocess.run(
        ["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def _chat(question: str, max_tokens: int = ANSWER_TOKENS, ignore_eos: bool = False) -> inference_pb2.GenerateRequest:
    messages = [
        inference_pb2.ChatMessage(role="system", content="You are a helpful assistant who answers in a few sentences."),
        inference_pb2.ChatMessage(role="user", content=question),
    ]
    return inference_pb2.GenerateRequest(
        prompt=inference_pb2.Prompt(chat=inference_pb2.ChatPrompt(messages=messages)),
        sampling=common_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=ignore_eos),
    )


def _read(
    responses: Iterator[inference_pb2.GenerateResponse], after_first_chunk: Callable[[], None] = lambda: None
) -> Answer:
    """Reads a stream to its end; every chunk must take up where the one before it ended."""
    token_ids: list[int] = []
    text, chunks = "", 0
    last = inference_pb2.GenerateResponse()
    for last in responses:
        assert last.position == len(token_ids)
        token_ids += last.token_ids
        text += last.text
        chunks += 1
        if chunks == 1:
            after_first_chunk()
    return Answer(token_ids, text, chunks, last.finish_reason, last.usage)


def _kill_processes(stack: Stack, service: str) -> None:
    """Kills all but the init process and this shell; init then ends, and the engine starts the container again."""
    stack.run_in(service, "sh", "-c", "kill -9 -1", check=False)
