"""Connections between all processes are slow, silent, parted and reset under load: nobody notices but by a pause."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import MakeTrial
from tests.chaos.network import Network, plan

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

MEAN_DELAY_SECONDS = 2.2


async def test_the_network_fails(make_trial: MakeTrial) -> None:
    async with make_trial(proxied=True) as trial:
        network = Network(trial.cluster)
        await network.run(plan(trial.rng, MEAN_DELAY_SECONDS))
        trial.notes["network_faults"] = network.counts
