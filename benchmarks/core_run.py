"""The KV manager's core on an instant executor, with two steps under way at once as in the service."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from benchmarks.candidate_model import SHORT_ANSWERS, BeamProfile, CandidateModel
from benchmarks.instant_executor import VOCAB_SIZE, InstantExecutor
from benchmarks.workloads import MAX_MODEL_LEN, RequestLengths, random_prompt
from kvmanager.capacity import Capacity
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.spec import BeamParams, RequestSpec

_EXECUTOR = "instant"
_SECONDS_PER_STEP = 0.02


class CoreRun:
    """One KV manager, one executor, and all requests in the queue from the start.

    Args:
        n: parallel samples of each request.
        beam_width: above 0: beam search instead.
        profile: of its beams.
    """

    def __init__(
        self,
        requests: Iterable[RequestLengths],
        num_blocks: int,
        block_size: int,
        *,
        seed: int,
        max_sequences: int = 256,
        n: int = 1,
        beam_width: int = 0,
        profile: BeamProfile = SHORT_ANSWERS,
    ) -> None:
        requests = list(requests)
        limits = Limits(MAX_MODEL_LEN, max_sequences, max_waiting_requests=len(requests))
        self.manager = KVManager(limits)
        self.manager.attach_executor(_EXECUTOR, Capacity(num_blocks, block_size, MAX_MODEL_LEN), now=0.0)
        self._executor = InstantExecutor(seed, CandidateModel(profile, seed))
        rng = random.Random(f"prompts {seed}")
        for number, lengths in enumerate(requests):
            spec = RequestSpec(
                number,
                random_prompt(lengths.prompt, VOCAB_SIZE, rng),
                n=beam_width or n,
                beam=BeamParams(beam_width) if beam_width else None,
                max_tokens=lengths.output,
                sampling=number,
            )
            self.manager.submit(spec, now=0.0)

    def steps(self) -> Iterator[None]:
        """Runs until every request is done; stops after each step that has been planned."""
        now, num_under_way = 0.0, 0
        while not self.manager.idle:
            now += _SECONDS_PER_STEP
            while (batch := self.manager.schedule(_EXECUTOR, now)) is not None:
                self._executor.send(batch)
                num_under_way += 1
                yield
            assert num_under_way, "requests are left, and nothing is to be done"
            self.manager.apply(_EXECUTOR, self._executor.run(), now)
            num_under_way -= 1
