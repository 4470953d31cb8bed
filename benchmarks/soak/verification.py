"""Verifies all answers of a soak, several at once."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks.soak.client import Answer
from benchmarks.soak.load import Load
from benchmarks.soak.reference import ReferenceModel, ReferenceTokenizer
from benchmarks.soak.report import Report
from benchmarks.soak.verify import Verified, Verifier


@dataclass(frozen=True)
class _Task:
    where: str
    answer: Answer
    alone: bool
    best: Answer | None = None


def verify(load: Load, gguf: Path, searches: int, ends: float, report: Report) -> dict[str, Any]:
    """Checks every answer and returns how much was checked.

    Args:
        load: What was served.
        gguf: The model.
        searches: Beam searches to do again with the reference.
        ends: When to give up, on the monotonic clock.
        report: Gets failures and progress.
    """
    num_threads = os.cpu_count() or 1
    model, tokenizer = ReferenceModel(gguf), ReferenceTokenizer(gguf)
    idle: SimpleQueue[Verifier] = SimpleQueue()
    verifiers = [
        # Reading a tokenizer from a GGUF file takes much longer than copying it.
        Verifier(deepcopy(tokenizer), model, load.block_size, -(-searches // num_threads))
        for _ in range(num_threads)
    ]
    for verifier in verifiers:
        idle.put(verifier)

    def check(task: _Task) -> list[str] | None:
        """What is wrong; None: there is no time left."""
        if time.monotonic() > ends:
            return None
        verifier = idle.get()
        try:
            problems = verifier.check(task.answer, task.alone)
            return problems + (verifier.check_best(task.best, task.answer) if task.best is not None else [])
        finally:
            idle.put(verifier)

    tasks = list(_tasks(load))
    # One thread for each answer wastes less than several that wait for one another, above all on a busy machine.
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done, (task, problems) in enumerate(zip(tasks, pool.map(check, tasks), strict=True)):
            if problems is None:
                report.fail("soak", [f"out of time with {done} of {len(tasks)} answers checked"])
                break
            report.fail(task.where, problems, task.answer.planned)
            report.progress("verified", done + 1, len(tasks))
    return Verified.sum([verifier.verified for verifier in verifiers]).summary()


def _tasks(load: Load) -> Iterator[_Task]:
    by_number = {answer.planned.number: answer for answer in load.answers}
    phases = {"probe": load.probes, "request": load.answers, "rerun": load.reruns, "expanded": load.expanded}
    for name, answers in phases.items():
        for answer in answers:
            number = answer.planned.number
            where = f"{name} {number} ({answer.planned.kind.value})"
            yield _Task(where, answer, name != "request", by_number[number] if name == "expanded" else None)
