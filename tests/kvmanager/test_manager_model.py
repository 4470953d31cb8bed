"""The KV manager against oracle executors, under every mixture of events that Hypothesis comes up with.

Its examples are short, and it makes a failing one shorter still. test_long_mixes.py has the long ones.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvmanager.cost_model import Preemption
from kvmanager.policies import POLICIES
from tests.kvmanager.mix import Mix
from tests.kvmanager.mix_inputs import METHODS, SCOPES, SPEEDS, Burst, Order, Setting

SETTINGS = st.builds(
    Setting,
    num_blocks=st.integers(4, 40),
    num_host_blocks=st.sampled_from([0, 3, 10, 40]),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    num_executors=st.sampled_from([1, 2, 3]),
    max_batched_tokens=st.integers(8, 40),
    max_sequences=st.integers(4, 8),
    prefix_caching=st.sampled_from([True, True, True, False]),
    policy=st.sampled_from(POLICIES),
    preemption=st.sampled_from(list(Preemption)),
    speeds=st.sampled_from(SPEEDS),
    quotas=st.booleans(),
    watched=st.booleans(),
    seed=st.integers(0, 2**32),
)

ORDERS = st.builds(
    Order,
    own_length=st.integers(1, 30),
    common=st.integers(0, 30),
    method=st.sampled_from(METHODS),
    width=st.integers(2, 4),
    max_tokens=st.integers(0, 25),
    min_tokens=st.integers(0, 3),
    scopes=st.lists(st.sampled_from(SCOPES), min_size=1, max_size=3).map(tuple),
    stops=st.booleans(),
    lifetime=st.one_of(st.none(), st.none(), st.floats(0.5, 30.0)),
    priority=st.integers(-2, 2),
)

BURSTS = st.builds(
    Burst,
    orders=st.lists(ORDERS, min_size=2, max_size=4).map(tuple),
    common=st.integers(1, 40),
    known=st.integers(0, 30),
    scheduled=st.integers(0, 2),
    leaving=st.lists(st.integers(0, 3), max_size=2, unique=True).map(tuple),
)


class KVManagerMachine(RuleBasedStateMachine):
    """Each rule is one event of a mix, which checks everything after it."""

    mix: Mix | None = None

    @initialize(setting=SETTINGS)
    def start(self, setting):
        self.mix = Mix(setting)

    @rule(orders=st.lists(ORDERS, min_size=1, max_size=4))
    def submit(self, orders):
        for order in orders:
            self.mix.submit(order)

    @rule(burst=BURSTS)
    def burst(self, burst):
        self.mix.burst(burst)

    @precondition(lambda self: self.mix.specs)
    @rule(copies=st.integers(1, 3))
    def submit_the_same_again(self, copies):
        self.mix.submit_the_same_again(copies)

    @rule(
        own_length=st.integers(1, 30),
        common=st.integers(0, 30),
        scope=st.sampled_from(SCOPES),
        ttl=st.floats(1.0, 50.0),
    )
    def pin(self, own_length, common, scope, ttl):
        self.mix.pin(own_length, common, scope, ttl)

    @precondition(lambda self: len(list(self.mix.manager.pins)))
    @rule()
    def unpin(self):
        self.mix.unpin(share=0.5)

    @precondition(lambda self: self.mix.specs)
    @rule(data=st.data())
    def abort(self, data):
        self.mix.abort(data.draw(st.sampled_from(sorted(self.mix.specs))))

    @precondition(lambda self: self.mix.running_outputs())
    @rule(data=st.data())
    def end_one_sequence(self, data):
        self.mix.end_one_sequence(data.draw(st.sampled_from(self.mix.running_outputs())))

    @rule(seconds=st.floats(0.0, 5.0))
    def time_passes(self, seconds):
        self.mix.time_passes(seconds)

    @rule()
    def schedule(self):
        self.mix.schedule()

    @rule()
    def result(self):
        self.mix.result()

    @rule(num_steps=st.integers(1, 8))
    def run_pipelined(self, num_steps):
        self.mix.run_pipelined(num_steps)

    @rule(num_runs=st.integers(1, 3))
    def executors_stall(self, num_runs):
        self.mix.executors_stall(num_runs)

    @rule(smaller=st.booleans(), pause=st.booleans())
    def executor_restarts(self, smaller, pause):
        self.mix.executor_restarts(smaller, pause)

    @rule(pause=st.booleans())
    def connection_breaks(self, pause):
        self.mix.connection_breaks(pause)

    @rule()
    def manager_crashes(self):
        self.mix.manager_crashes()

    @rule()
    def quotas_change(self):
        self.mix.quotas_change()

    @rule()
    def executor_joins(self):
        self.mix.executor_joins()

    @rule()
    def executor_drains(self):
        self.mix.executor_drains()

    @rule()
    def drained_executors_leave(self):
        self.mix.drained_executors_leave()

    def teardown(self):
        if self.mix is not None:
            self.mix.finish()


TestKVManager = pytest.mark.timeout(400)(KVManagerMachine.TestCase)  # all its examples are one test
TestKVManager.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
