"""Each process is told to end and starts again, one after the other, under load: no request fails."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.cluster import DRAIN_SECONDS, SERVICES
from tests.chaos.conftest import MakeTrial

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

END_SECONDS = DRAIN_SECONDS + 15.0


async def test_a_rolling_restart(make_trial: MakeTrial) -> None:
    async with make_trial() as trial:
        cluster = trial.cluster
        for service in SERVICES:
            for process in cluster.members[service]:
                before = len(cluster.exit_codes[service])
                process.terminate()
                for _ in range(round(END_SECONDS / 0.05)):
                    if len(cluster.exit_codes[service]) > before:
                        break
                    await asyncio.sleep(0.05)
                else:
                    trial.problems.append(f"{process.name} has not ended within {END_SECONDS:g} s of SIGTERM")
                await cluster.serving()
        assert {service: set(codes) for service, codes in cluster.exit_codes.items()} == {
            service: {0} for service in SERVICES
        }
