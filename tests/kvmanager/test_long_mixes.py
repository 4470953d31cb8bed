"""Long random mixes of everything, a hundred thousand steps of them and more, all of it checked after every event.

Each mix comes from one number. A failure names it, and `MIX_SEED=that_number pytest tests/kvmanager/test_long_mixes.py`
brings exactly that mix back.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.events import Event, EventKind
from kvmanager.policies import POLICIES
from kvmanager.spec import RequestSpec
from kvmanager.step import NewSequence, StepBatch
from tests.kvmanager.mix import Mix
from tests.kvmanager.mix_inputs import METHODS, SCOPES, SPEEDS, Burst, Order, Setting

EVENTS_PER_MIX = 400

WEIGHTS = {
    "run": 30,
    "submit": 34,
    "burst": 4,
    "submit_again": 4,
    "schedule": 4,
    "result": 6,
    "stall": 3,
    "time": 3,
    "end_one_sequence": 5,
    "pin": 2,
    "abort": 2,
    "unpin": 0.5,
    "leave": 1,
    "restart": 0.5,
    "break": 0.7,
    "crash": 0.7,
    "quotas": 0.5,
    "join": 0.3,
    "drain": 0.5,
}
"""How often what happens, relative to each other: there is nearly always more to do than fits."""

EXPECTED = {
    "answered: one": 1000,
    "answered: samples": 600,
    "answered: best_of": 600,
    "answered: beams": 800,
    "answered: pin": 100,
    "finished: abort": 300,
    "finished: DeadlineExceeded": 100,
    "preempted: swap": 150,
    "preempted: recompute": 400,
    "preempted: executor lost": 60,
    "swapped out blocks": 8000,
    "swapped in blocks": 800,
    "copied blocks": 6000,
    "copied a part of a block": 700,
    "shared a step's blocks": 300,
    "took over what another computes": 80,
    "merged duplicates": 400,
    "branches of beams": 5000,
    "hits": 12000,
    "host hits": 800,
    "waited: blocks": 1000,
    "waited: tenant_limit": 15,
    "went on elsewhere": 50,
    "adopted blocks": 5000,
    "went on with adopted blocks": 350,
    "happened: restart": 100,
    "happened: break": 100,
    "happened: crash": 100,
    "happened: quotas": 100,
    "happened: join": 60,
    "happened: drain": 100,
}
"""What a hundred thousand steps have at least: a fifth of what they had when this was written."""


class Seen:
    """Counts what happens in a mix, from the outside: from its events, and from the steps that executors are sent."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.mix: Mix | None = None
        self._table_lengths: dict[int, int] = {}
        self._homes: dict[object, str] = {}

    def batch(self, name: str, batch: StepBatch) -> None:
        counts, lengths = self.counts, self._table_lengths
        copies = {destination for _, destination in batch.block_copies}
        for sequence_id in batch.forget:
            del lengths[sequence_id]
        for parent, child in batch.branches:
            lengths[child] = lengths[parent]
        for new in batch.new_sequences:
            counts["took over what another computes"] += new.sequence_id in lengths
            counts["shared a step's blocks"] += self._shares_with_step(name, batch, new)
            counts["copied a part of a block"] += not copies.isdisjoint(new.block_table)
            lengths[new.sequence_id] = len(new.block_table)
        for sequence_id, index, block_id in batch.table_edits:
            counts["merged duplicates"] += index < lengths[sequence_id] and block_id not in copies
            lengths[sequence_id] = max(lengths[sequence_id], index + 1)
        for parent, children in batch.forks.items():
            lengths.update(dict.fromkeys(children, lengths[parent]))
        counts["steps"] += 1
        counts["swapped out blocks"] += len(batch.swaps_out)
        counts["swapped in blocks"] += len(batch.swaps_in)
        counts["copied blocks"] += len(batch.block_copies)
        counts["branches of beams"] += len(batch.branches)

    def _shares_with_step(self, name: str, batch: StepBatch, new: NewSequence) -> bool:
        """It starts from blocks that other rows of its first step fill."""
        assert self.mix is not None
        memory = self.mix.manager.replicas[name].memory
        fetched = {destination for _, destination in batch.swaps_in}
        computed = set(new.block_table[: new.num_computed // memory.block_size]) - fetched
        return any(memory.pool.blocks[block_id].written_step == batch.step for block_id in computed)

    def event(self, event: Event) -> None:
        if event.kind is EventKind.PREEMPTED:
            self.counts[f"preempted: {event.detail}"] += 1
        elif event.kind is EventKind.WAITED:
            self.counts[f"waited: {event.detail}"] += 1
        elif event.kind is EventKind.FINISHED:
            self.counts[f"finished: {event.detail}"] += 1
        elif event.kind is EventKind.ADMITTED:
            home = self._homes.setdefault(event.handle, event.executor)
            self.counts["went on elsewhere"] += home != event.executor
            self._went_on(event)

    def _went_on(self, event: Event) -> None:
        assert self.mix is not None
        if event.handle in self.mix.resubmitted:
            self.mix.resubmitted.remove(event.handle)
            self.counts["went on with adopted blocks"] += event.value > 0

    def crash(self) -> None:
        """The next KV manager counts from the start."""
        self.take_counters()
        self._table_lengths.clear()

    def take_counters(self) -> None:
        """A KV manager has done its work."""
        assert self.mix is not None
        counters = self.mix.manager.counters
        self.counts["host hits"] += counters.host_cached_prompt_tokens
        self.counts["hits"] += counters.cached_prompt_tokens

    def end(self, spec: RequestSpec) -> None:
        self.counts["answered: " + _method(spec)] += 1


def _method(spec: RequestSpec) -> str:
    if spec.pin is not None:
        return "pin"
    if spec.beam is not None:
        return "beams"
    return "best_of" if spec.best_of else "samples" if spec.n > 1 else "one"


def live(seed: int, counts: Counter[str], num_events: int = EVENTS_PER_MIX) -> None:
    """One mix, from its setting to its end."""
    rng = random.Random(seed)
    seen = Seen(counts)
    mix = Mix(some_setting(rng), seen.batch, seen.event, seen.end)
    seen.mix = mix
    for kind in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=num_events):
        counts["happened: " + kind] += 1
        if kind == "crash":
            seen.crash()
        happens(kind, mix, rng)
    mix.finish()
    seen.take_counters()
    counts["mixes"] += 1
    counts["adopted blocks"] += mix.num_adopted


def happens(kind: str, mix: Mix, rng: random.Random) -> None:
    if kind == "run":
        mix.run_pipelined(rng.randint(1, 6))
    elif kind == "submit":
        mix.submit(some_order(rng))
    elif kind == "burst":
        mix.burst(some_burst(rng))
    elif kind == "result":
        mix.result()
    elif kind == "schedule":
        mix.schedule()
    elif kind == "submit_again":
        mix.submit_the_same_again(rng.randint(1, 3))
    elif kind == "stall":
        mix.executors_stall(rng.randint(1, 3))
    elif kind == "time":
        mix.time_passes(rng.uniform(0.0, 5.0))
    elif kind == "end_one_sequence" and (running := mix.running_outputs()):
        mix.end_one_sequence(rng.choice(running))
    elif kind == "pin":
        mix.pin(rng.randint(1, 30), rng.randint(0, 30), rng.choice(SCOPES), ttl=rng.uniform(1.0, 50.0))
    elif kind == "abort" and mix.specs:
        mix.abort(rng.choice(sorted(mix.specs)))
    elif kind == "unpin":
        mix.unpin(share=0.5)
    elif kind == "leave":
        mix.drained_executors_leave()
    elif kind == "restart":
        mix.executor_restarts(smaller=rng.random() < 0.2, pause=rng.random() < 0.5)
    elif kind == "break":
        mix.connection_breaks(pause=rng.random() < 0.5)
    elif kind == "crash":
        mix.manager_crashes()
    elif kind == "quotas":
        mix.quotas_change()
    elif kind == "join":
        mix.executor_joins()
    elif kind == "drain":
        mix.executor_drains()


def some_setting(rng: random.Random) -> Setting:
    return Setting(
        num_blocks=rng.randint(4, 30),
        num_host_blocks=rng.choice([0, 3, 10, 25, 25]),
        block_size=rng.choice([1, 2, 3, 4, 8]),
        num_executors=rng.choice([1, 1, 1, 1, 2, 3]),
        max_batched_tokens=rng.randint(8, 40),
        max_sequences=rng.randint(4, 8),
        prefix_caching=rng.random() < 0.8,
        policy=rng.choice(POLICIES),
        preemption=rng.choice(list(Preemption)),
        speeds=rng.choice(SPEEDS),
        quotas=rng.random() < 0.6,
        watched=rng.random() < 0.2,
        seed=rng.randrange(2**32),
    )


def some_order(rng: random.Random) -> Order:
    return Order(
        own_length=rng.randint(1, 30),
        common=rng.randint(0, 30),
        method=rng.choice(METHODS),
        width=rng.randint(2, 4),
        max_tokens=rng.randint(0, 25),
        min_tokens=rng.randint(0, 3),
        scopes=tuple(rng.choices(SCOPES, k=rng.randint(1, 3))),
        stops=rng.random() < 0.5,
        lifetime=rng.uniform(0.5, 30.0) if rng.random() < 0.4 else None,
        priority=rng.randint(-2, 2),
    )


def some_burst(rng: random.Random) -> Burst:
    num_requests = rng.randint(2, 6)
    like = some_order(rng)  # half of them are of one kind, so that they can share
    orders = [rng.choice([some_order(rng), replace(like, own_length=rng.randint(1, 10))]) for _ in range(num_requests)]
    return Burst(
        tuple(orders),
        common=rng.randint(1, 40),
        known=rng.randint(0, 30),
        scheduled=rng.randint(0, 2),
        leaving=tuple(rng.sample(range(num_requests), rng.choice([0, 0, 1, 1, 2]))),
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_steps", [12_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_everything_mixed(num_steps):
    counts: Counter[str] = Counter()
    if "MIX_SEED" in os.environ:
        live(int(os.environ["MIX_SEED"]), counts)
        return
    while counts["steps"] < num_steps:
        seed = random.randrange(2**32)
        try:
            live(seed, counts)
        except Exception as error:
            raise AssertionError(f"MIX_SEED={seed} brings this back: {error}") from error
    expected = {name: count * num_steps / 100_000 for name, count in EXPECTED.items()}
    missing = [name for name in expected if counts[name] < expected[name]]
    assert not missing, f"{missing} hardly ever happened: {dict(counts)}"


def test_a_seed_brings_the_same_mix_back():
    seed = random.randrange(2**32)
    first, second = Counter[str](), Counter[str]()
    for counts in (first, second):
        live(seed, counts, num_events=60)
    assert first == second, f"MIX_SEED={seed}"
