"""Shared by the tests of the services as processes: one model, one undisturbed stack, and parts for those that kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.e2e.calls import Caller
from tests.services.e2e.processes import SERVING, Processes, Server
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.tiny_model import Reference, save_tiny_model

MakeStack = Callable[..., Stack]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("logs"))
    yield started
    started.end()


@pytest.fixture(scope="session")
def shared_stack(processes: Processes, model: Path) -> Iterator[Stack]:
    """Use `stack` instead."""
    stack = Stack(processes, model, make_executor(processes, model))
    stack.start()
    yield stack
    stack.close()
    stack.executor.kill()


@pytest.fixture
def stack(shared_stack: Stack) -> Iterator[Stack]:
    """The stack that nobody disturbs. Every test leaves it as it was: no request, no referenced block."""
    yield shared_stack
    shared_stack.wait_until_idle()


@pytest.fixture
def caller(stack: Stack) -> Caller:
    return stack.caller


@pytest.fixture(scope="session")
def spare_executor(processes: Processes, model: Path) -> Server:
    """One executor for all tests that need a KV manager or a gateway of their own, one after the other."""
    return make_executor(processes, model)


@pytest.fixture
def make_stack(processes: Processes, model: Path, spare_executor: Server) -> Iterator[MakeStack]:
    """Starts stacks that a test may treat as it likes, on the spare executor."""
    stacks: list[Stack] = []

    def make(**settings: Any) -> Stack:
        stack = Stack(processes, model, spare_executor, **settings)
        stacks.append(stack)
        stack.start()
        return stack

    yield make
    for stack in stacks:
        stack.close()
    if spare_executor.running:
        spare_executor.go_on()
        if spare_executor.health() != SERVING:  # it was told to end
            spare_executor.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failure shows what the processes had to say."""
    report = yield
    processes = getattr(item, "funcargs", {}).get("processes")
    if report.failed and processes is not None:
        report.sections += [(f"log of {name}", log) for name, log in processes.logs()]
    return report
