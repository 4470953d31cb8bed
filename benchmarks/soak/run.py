"""Runs a soak from its start to its summary."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.soak.load import Load, Loader
from benchmarks.soak.report import Report
from benchmarks.soak.stack import MODEL, Place, ServedStack, StackFailed
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
        kv_memory: Of the stack that is started.
        place: A running stack to use instead, or None.
    """

    requests: int
    clients: int
    reruns: int
    seed: int
    timeout: float
    kv_memory: str
    place: Place | None = None


def run(options: Options, report: Report) -> bool:
    """Runs a soak and prints its summary as the last line. Returns whether all was right."""
    ends = time.monotonic() + options.timeout
    gguf = Path(resolve_model(MODEL))
    report.emit("start", seed=options.seed, requests=options.requests, clients=options.clients)
    summary = {}
    with report.bars():
        load = asyncio.run(_serve(options, report))
        if load is not None:
            report.emit("served", requests=len(load.answers), seconds=round(load.seconds, 1))
            summary = {**summarise(load), "verified": _verify(load, gguf, ends, report)}
    report.emit("summary", seed=options.seed, **summary, failures=len(report.failures), ok=not report.failures)
    return not report.failures


async def _serve(options: Options, report: Report) -> Load | None:
    """Everything that needs the stack; None where it did not come to its end."""
    if options.place is not None:
        return await _load(options.place, options, report)
    stack = ServedStack(options.kv_memory)
    try:
        return await _load(await stack.start(), options, report)
    except StackFailed as failure:
        report.fail("octavo serve", [str(failure)])
        return None
    finally:
        await _stop(stack, report)


async def _load(place: Place, options: Options, report: Report) -> Load | None:
    loader = Loader(place, options.seed, options.clients, report)
    try:
        return await asyncio.wait_for(loader.serve(options.requests, options.reruns), options.timeout)
    except asyncio.TimeoutError:
        report.fail("soak", [f"not over after {options.timeout:.0f} s; under way: {sorted(loader.under_way)}"])
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


def _verify(load: Load, gguf: Path, ends: float, report: Report) -> dict[str, Any]:
    """Checks every answer and returns how much was checked."""
    # Takes seconds to import: not before it is needed.
    from benchmarks.soak.verify import Verifier

    verifier = Verifier(gguf)
    answers = [("probe", answer) for answer in load.probes]
    answers += [("request", answer) for answer in load.answers]
    answers += [("rerun", answer) for answer in load.reruns]
    for done, (name, answer) in enumerate(answers):
        if time.monotonic() > ends:
            report.fail("soak", [f"out of time with {done} of {len(answers)} answers checked"])
            break
        where = f"{name} {answer.planned.number} ({answer.planned.kind.value})"
        report.fail(where, verifier.check(answer), answer.planned)
        report.progress("verified", done + 1, len(answers))
    return verifier.summary()
