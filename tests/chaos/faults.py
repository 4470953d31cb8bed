"""What is done to the processes, at random from a seed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.chaos.cluster import DRAIN_SECONDS, SERVICES, Cluster, Service
from tests.services.e2e.processes import Process

Kind = Literal["kill", "stop", "restart"]
KINDS: tuple[Kind, ...] = ("kill", "stop", "restart")

LEAST_OF_EACH = 4
"""Of each kind to each service."""

_END_SECONDS = DRAIN_SECONDS + 15.0


@dataclass(frozen=True)
class Fault:
    """Something that happens to one process.

    Attributes:
        kind: ``kill -9``; SIGSTOP, and SIGCONT some time after; or SIGTERM. The supervisor starts what has ended.
        service: Of which one process is meant.
        which: Its number, where there are several.
        delay: Seconds after the fault before.
        seconds: How long it stands still.
    """

    kind: Kind
    service: Service
    which: int
    delay: float
    seconds: float


def plan(rng: random.Random, num_faults: int, mean_delay: float, services: Sequence[Service] = SERVICES) -> list[Fault]:
    """Faults in random order: at least so many of each kind to each service, the others at random."""
    what = [(kind, service) for kind in KINDS for service in services] * LEAST_OF_EACH
    what += [(rng.choice(KINDS), rng.choice(services)) for _ in range(num_faults - len(what))]
    rng.shuffle(what)
    return [
        Fault(
            kind,
            service,
            rng.randrange(2),
            rng.uniform(0.3, 2 * mean_delay - 0.3),
            # Mostly short; now and then for longer than any lease or keepalive lasts.
            rng.uniform(11.0, 13.0) if rng.random() < 0.1 else rng.uniform(0.2, 3.0),
        )
        for kind, service in what
    ]


class Injector:
    """Does what is planned.

    Attributes:
        counts: Faults by service and kind.
        problems: Processes that did not end when they were told to.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._under_way: set[asyncio.Task[None]] = set()
        self.counts: dict[Service, Counter[Kind]] = {service: Counter() for service in SERVICES}
        self.problems: list[str] = []

    async def run(self, faults: Sequence[Fault]) -> None:
        """Returns when all are over; what was killed last may still be starting."""
        for fault in faults:
            await asyncio.sleep(fault.delay)
            members = self._cluster.members[fault.service]
            process = members[fault.which % len(members)]
            while not process.running:
                await asyncio.sleep(0.05)
            self.counts[fault.service][fault.kind] += 1
            self._inject(fault, process)
        await asyncio.gather(*self._under_way)

    def _inject(self, fault: Fault, process: Process) -> None:
        if fault.kind == "kill":
            process.kill()
            return
        work = self._stand_still(process, fault.seconds) if fault.kind == "stop" else self._end(process)
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _stand_still(self, process: Process, seconds: float) -> None:
        process.pause()
        await asyncio.sleep(seconds)
        if process.running:
            process.go_on()

    async def _end(self, process: Process) -> None:
        """It may stand still, or be killed, meanwhile."""
        pid = process.pid
        process.signal(signal.SIGTERM)
        process.go_on()
        for _ in range(round(_END_SECONDS / 0.1)):
            if not process.running or process.pid != pid:
                return
            await asyncio.sleep(0.1)
        self.problems.append(f"{process.name} has not ended within {_END_SECONDS:g} s of SIGTERM")
        process.kill()
