"""Runs a soak from its start to its summary."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from benchmarks.soak.load import Load, Loader, Plan
from benchmarks.soak.report import Report
from benchmarks.soak.stack import MODEL, Place, ServedStack, Settings, StackFailed
from benchmarks.soak.summary import summarise
from octavo.client import OctavoError
from services.model_store import resolve_model

# How much of the stack's log is printed where it tells of a failure.
_LOG_LINES = 200


@dataclass(frozen=True)
class Options:
    """What to do.

    Attributes:
        requests: How many to send.
        clients: How many at once, each on a connection of its own.
        reruns: How many answered requests to send again, alone.
        seed: Decides every request.
        timeout: Seconds after which the soak has failed.
        searches: How many beam searches to do again with the reference.
        kill: Whether to kill an executor in the middle.
        stack: The stack to start.
        place: A running stack to use instead, or None.
    """

    requests: int
    clients: int
    reruns: int
    seed: int
    timeout: float
    searches: int
    kill: bool
    stack: Settings
    place: Place | None = None


def run(options: Options, report: Report) -> bool:
    """Runs a soak and prints its summary as the last line. Returns whether all was right."""
    ends = time.monotonic() + options.timeout
    gguf = Path(resolve_model(MODEL))
    report.emit("start", seed=options.seed, requests=options.requests, clients=options.clients)
    started = time.monotonic()
    summary: dict[str, Any] = {}
    with report.bars():
        load = asyncio.run(_serve(options, report))
        if load is not None:
            report.emit("served", requests=len(load.answers), seconds=round(load.seconds, 1))
            # Takes seconds to import: not before it is needed.
            from benchmarks.soak.verification import verify

            summary = {**summarise(load), "verified": verify(load, gguf, options.searches, ends, report)}
    took = round(time.monotonic() - started, 1)
    report.emit(
        "summary",
        seed=options.seed,
        **summary,
        total_seconds=took,
        failures=len(report.failures),
        ok=not report.failures,
    )
    return not report.failures


async def _serve(options: Options, report: Report) -> Load | None:
    """Everything that needs the stack; None where it did not come to its end."""
    plan = Plan(options.requests, options.clients, options.reruns, options.seed)
    if options.place is not None:
        return await _load(options.place, plan, options.timeout, report)
    stack = ServedStack(options.stack)
    try:
        place = await stack.start()
        plan = replace(plan, num_executors=options.stack.executors, kill=stack.kill, check_totals=True)
        if options.kill:
            plan = replace(plan, victim=max(name for name in place.pids if name.startswith("executor")))
        return await _load(place, plan, options.timeout, report)
    except StackFailed as failure:
        report.fail("octavo serve", [str(failure)])
        return None
    finally:
        await _stop(stack, report)


async def _load(place: Place, plan: Plan, timeout: float, report: Report) -> Load | None:
    loader = Loader(place, plan, report)
    try:
        return await asyncio.wait_for(loader.serve(), timeout)
    except asyncio.TimeoutError:
        report.fail("soak", [f"not over after {timeout:.0f} s; under way: {sorted(loader.under_way)}"])
    except OctavoError as error:
        report.fail("soak", [f"the gateway does not answer: {error}"])
    except grpc.RpcError as error:
        report.fail("soak", [f"the stack does not answer: {OctavoError.from_rpc(error)}"])
    return None


async def _stop(stack: ServedStack, report: Report) -> None:
    try:
        await stack.stop()
    except StackFailed as failure:
        report.fail("octavo serve", [str(failure)])
    if stack.trouble:
        report.fail("log", stack.trouble)
        report.emit("log", last_lines=stack.lines[-_LOG_LINES:])
