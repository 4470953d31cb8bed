"""A cluster under load, and what has to hold when a test is done with it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.client import AsyncClient
from tests.chaos.cluster import Cluster
from tests.chaos.crowd import Crowd
from tests.chaos.workload import Workload
from tests.services.e2e.processes import Processes


@dataclass
class Trial:
    """What a test gets.

    Attributes:
        cluster: Runs.
        rng: For what the test does at random.
        notes: What the test adds to the summary.
        problems: What the test finds wrong.
    """

    cluster: Cluster
    rng: random.Random
    notes: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@asynccontextmanager
async def trial(
    processes: Processes,
    model: Path,
    redis_program: str,
    folder: Path,
    workload: Workload,
    seed: int,
    *,
    proxied: bool = False,
) -> AsyncIterator[Trial]:
    """Clients ask for the time of a block, and get all answers; then nothing is left behind. Prints a summary.

    Raises:
        AssertionError: An answer was wrong, incomplete or an error, or something was left behind.
    """
    cluster = Cluster(processes, model, redis_program, folder, proxied=proxied)
    async with cluster.running():
        async with AsyncClient(cluster.gateways) as client:
            await workload.learn(client)
        crowd = Crowd(cluster.gateways, workload.cases, seed)
        one = Trial(cluster, random.Random(seed))
        began = time.monotonic()
        async with crowd.asking():
            yield one
        seconds = time.monotonic() - began
        summary = {
            "seed": seed,
            "seconds": round(seconds, 1),
            **one.notes,
            "started_again": {service: len(codes) for service, codes in cluster.exit_codes.items()},
            "events": cluster.events(),
            **crowd.counts,
            "kinds": crowd.kinds,
            "longest_pause_s": round(crowd.longest_pause, 2),
        }
        print(json.dumps(summary), flush=True)
        problems = crowd.problems + one.problems + cluster.breakdowns()
        assert not problems, "\n".join(problems)
        await cluster.serving()
        await cluster.idle()
