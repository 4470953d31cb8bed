"""Thirty-two clients stream while every process is killed, held still and restarted: nobody notices but by a pause."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import MakeTrial
from tests.chaos.faults import Injector, plan

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(540)]

NUM_FAULTS = 54
MEAN_DELAY_SECONDS = 3.0


async def test_every_process_fails(make_trial: MakeTrial) -> None:
    async with make_trial() as trial:
        injector = Injector(trial.cluster)
        await injector.run(plan(trial.rng, NUM_FAULTS, MEAN_DELAY_SECONDS))
        trial.notes["faults"] = injector.counts
        trial.problems += injector.problems
