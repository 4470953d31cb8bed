"""Rounds of a set on one system or on several that take turns, with a probe of the machine beside each."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.answers import Answer, figures
from benchmarks.probe import Probe
from benchmarks.processes import cpu_seconds, peak_memory_mb, process_tree, proportional_memory_mb
from benchmarks.request_sets import VOCAB_SIZE, RequestSet, request_set, warm_up_set


class System(Protocol):
    """Something that serves requests in processes of its own; it is running.

    Attributes:
        name: of the system.
        start_s: seconds from starting it until it could take a request.
        pid: the process that all its others descend from.
    """

    name: str
    start_s: float
    pid: int

    def run(self, requests: RequestSet) -> list[Answer]:
        """Sends the requests and waits for all answers, in the requests' order."""
        ...

    def details(self) -> dict[str, Any]:
        """What is worth knowing beside the figures: versions, settings, which kernels run."""
        ...


class Measurement:
    """Rounds of one set, one after the other or in turns with those of other systems.

    Each round sends other tokens, so that no system finds an earlier round's in its cache; a round's tokens depend on
    its number and the seed alone, so every system gets the same.
    """

    def __init__(
        self, system: System, name: str, seed: int, count: int | None = None, vocab_size: int = VOCAB_SIZE
    ) -> None:
        """Sends a few requests that do not count.

        Args:
            name: of the set, one of `SETS`.
            count: of requests; the set's own where None.
        """
        self.system = system
        self.name = name
        self.rounds: list[dict[str, Any]] = []
        self.answers: list[list[Answer]] = []
        self._seed, self._count, self._vocab_size = seed, count, vocab_size
        system.run(warm_up_set(seed, vocab_size))

    def run_round(self, probe: Probe) -> dict[str, Any]:
        """The next round's figures."""
        number = len(self.rounds)
        requests = request_set(self.name, 1000 * self._seed + number, self._count, self._vocab_size)
        machine = probe.measure()
        pids = process_tree(self.system.pid)
        before = cpu_seconds(pids)
        own_before = time.process_time()
        answers = self.system.run(requests)
        client = time.process_time() - own_before
        after = cpu_seconds(pids)
        self.answers.append(answers)
        self.rounds.append(figures(requests, answers, after - before, client) | {"probe": machine})
        return {"set": self.name, "system": self.system.name, "round": number} | self.rounds[-1]

    def summary(self) -> dict[str, Any]:
        """Medians over the rounds, start-up and memory."""
        requests = request_set(self.name, 0, self._count, self._vocab_size)
        pids = process_tree(self.system.pid)
        facts = {
            "set": self.name,
            "system": self.system.name,
            "requests": len(requests.requests),
            "prompt_tokens": requests.prompt_tokens,
            "output_tokens": requests.output_tokens,
            "rounds": len(self.rounds),
        }
        memory = {
            "start_s": round(self.system.start_s, 2),
            "rss_mb": round(peak_memory_mb(pids)),
            "pss_mb": round(proportional_memory_mb(pids)),
        }
        return facts | _medians(self.rounds) | memory | self.system.details()


def take_turns(measurements: Sequence[Measurement], num_rounds: int) -> None:
    """Runs so many rounds of each, printing each; who begins changes from round to round."""
    with Probe() as probe:
        for number in range(num_rounds):
            order = list(measurements) if number % 2 == 0 else list(reversed(measurements))
            for measurement in order:
                print(json.dumps(measurement.run_round(probe)), flush=True)


def equal_first_tokens(one: Measurement, other: Measurement) -> float:
    """Share of requests that both systems answered with the same first token; 1 says that both run the same model."""
    pairs = [
        (mine.token_ids[0], theirs.token_ids[0])
        for answers, others in zip(one.answers, other.answers, strict=True)
        for mine, theirs in zip(answers, others, strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in rounds[0] if name != "probe"]
    probes = [each["probe"] for each in rounds]
    medians: dict[str, Any] = {name: _median([each[name] for each in rounds]) for name in names}
    medians["probe"] = {name: _median([each[name] for each in probes]) for name in probes[0]}
    return medians


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)
