"""The driver's side: says when its system is ready, then answers sets of requests until there are no more.

Runs in the peer's own virtual environment, so it imports nothing that needs more than the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.processes import process_tree

LONGEST = 2048
"""Tokens of a prompt and its output together, at most."""


@dataclass
class Request:
    """One greedy request that ignores the end of the sequence, and what came of it. Times are `time.perf_counter`'s."""

    prompt: list[int]
    output_tokens: int
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    token_ids: list[int] = field(default_factory=list)

    def got(self, token_ids: Sequence[int]) -> None:
        """Takes new tokens, which are there now."""
        if token_ids:
            self.last = time.perf_counter()
            self.first = self.first or self.last
            self.token_ids += token_ids


class Engine(Protocol):
    """A peer."""

    def details(self) -> Mapping[str, Any]:
        """Its version, and what it runs with."""
        ...

    def run(self, requests: Sequence[Request]) -> None:
        """Sends all at once; returns when all have their tokens."""
        ...


def drive(make_engine: Callable[[str, Mapping[str, str]], Engine]) -> None:
    """The whole life of a driver, on its standard input and output.

    Args:
        make_engine: gets the model's path and the settings that were asked for, by name.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--option", action="append", default=[])
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    # Whatever the peer prints is not an answer.
    os.dup2(2, 1)
    engine = make_engine(args.model, dict(option.split("=", 1) for option in args.option))

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        _signal_children(signal.SIGSTOP)
        say({"details": dict(engine.details())})
        for line in sys.stdin:
            question = json.loads(line)
            requests = [Request(prompt, output_tokens) for prompt, output_tokens in question["requests"]]
            _signal_children(signal.SIGCONT)
            for batch in [requests] if question["at_once"] else [[request] for request in requests]:
                _run(engine, batch)
            _signal_children(signal.SIGSTOP)
            say({"answers": [[each.sent, each.first, each.last, each.token_ids] for each in requests]})
    finally:
        _signal_children(signal.SIGCONT)


def _run(engine: Engine, requests: Sequence[Request]) -> None:
    now = time.perf_counter()
    for request in requests:
        request.sent = now
    engine.run(requests)


def _signal_children(number: signal.Signals) -> None:
    """Stops the peer's other processes, or lets them go on.

    Some spin while they have nothing to do, on cores that others are measured on.
    """
    for pid in process_tree(os.getpid())[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
