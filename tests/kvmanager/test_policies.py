"""In which order requests are served, and that none of the policies lets anybody starve."""

from __future__ import annotations

from collections import Counter

import pytest

from kvmanager.accounts import Quota
from kvmanager.events import EventKind
from kvmanager.policies import POLICIES, make_policy
from kvmanager.policies.deadline import PATIENCE_SECONDS
from kvmanager.policies.priority import SECONDS_PER_LEVEL
from tests.kvmanager.harness import Harness


def crowded(policy: str, **options: object) -> Harness:
    """One sequence runs at a time, so the order is seen."""
    return Harness(policy=policy, max_sequences=1, **options)  # type: ignore[arg-type]


def order(h: Harness) -> list[object]:
    h.run_and_check()
    return h.handles(EventKind.ADMITTED)


# Order


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="'lifo'; there are fcfs, priority, fair, deadline"):
        make_policy("lifo", {})


def test_first_come_first_served():
    h = crowded("fcfs")
    for name, options in {"a": {}, "b": {"priority": 5}, "c": {"deadline": 9.0, "tenant": "beta"}}.items():
        h.submit(name, h.prompt(5), **options)
    assert order(h) == ["a", "b", "c"]


def test_higher_priority_goes_first_and_equal_ones_by_arrival():
    h = crowded("priority")
    for name, priority in {"a": 0, "b": 2, "c": -1, "d": 2}.items():
        h.submit(name, h.prompt(5), priority=priority)
    assert order(h) == ["b", "d", "a", "c"]


@pytest.mark.parametrize(("seconds", "first"), [(SECONDS_PER_LEVEL - 1, "high"), (SECONDS_PER_LEVEL + 1, "low")])
def test_a_level_of_priority_is_worth_so_much_waiting(seconds, first):
    h = crowded("priority")
    h.submit("low", h.prompt(5), priority=1)
    h.now = seconds
    h.submit("high", h.prompt(5), priority=2)
    assert order(h)[0] == first


def test_the_earliest_deadline_goes_first():
    h = crowded("deadline")
    for name, deadline in {"a": 30.0, "b": 10.0, "c": 20.0}.items():
        h.submit(name, h.prompt(5), deadline=deadline)
    assert order(h) == ["b", "c", "a"]


@pytest.mark.parametrize(("deadline", "first"), [(PATIENCE_SECONDS - 1, "due"), (PATIENCE_SECONDS + 1, "patient")])
def test_a_request_without_a_deadline_is_patient_for_so_long(deadline, first):
    h = crowded("deadline")
    h.submit("due", h.prompt(5), deadline=deadline)
    h.submit("patient", h.prompt(5))
    assert order(h)[0] == first


def test_who_got_least_goes_first():
    h = crowded("fair")
    for index in range(3):
        h.submit(("acme", index), h.prompt(5), tenant="acme")
    for index in range(2):
        h.submit(("beta", index), h.prompt(5), tenant="beta")
    assert order(h) == [("acme", 0), ("beta", 0), ("acme", 1), ("beta", 1), ("acme", 2)]


def test_a_request_that_is_preempted_keeps_its_place():
    for policy in POLICIES:
        h = Harness(num_blocks=12, block_size=2, policy=policy)
        for name in ("a", "b", "c"):
            h.submit(name, h.prompt(6), max_tokens=14)
        h.run_and_check()
        assert h.counters.preemptions > 0


# Nobody starves: the disadvantaged one is done within a bound, while favoured ones never end


class Stream:
    """So many requests of a kind are there at all times: as soon as one is done the next is submitted."""

    def __init__(self, h: Harness, width: int, prompt_length: int = 6, max_tokens: int = 6, **options: object) -> None:
        self._h = h
        self._width = width
        self._shape = prompt_length, max_tokens
        self._options = options
        self._number = 0

    def refill(self) -> None:
        h, (prompt_length, max_tokens) = self._h, self._shape
        tenant = self._options.get("tenant", "default")
        here = sum(request.spec.tenant == tenant for request in h.manager._requests.values())
        for _ in range(self._width - here):
            self._number += 1
            options = dict(self._options)
            if "lifetime" in options:
                options["deadline"] = h.now + options.pop("lifetime")
            h.submit((tenant, self._number), h.prompt(prompt_length), max_tokens, **options)


def seconds_until_done(h: Harness, stream: Stream, handle: str, bound: float) -> float:
    start = h.now
    while handle not in h.usage:
        stream.refill()
        h.step()
        h.take(h.manager.expire(h.now))
        h.now += 0.1
        assert h.now - start <= bound, "it starves"
    return h.now - start


def test_fcfs_lets_a_large_request_in_among_small_ones():
    h = Harness(num_blocks=16, block_size=4, policy="fcfs")
    stream = Stream(h, width=5, tenant="many")
    stream.refill()
    h.step()
    h.submit("large", h.prompt(52), max_tokens=8, tenant="one")
    assert seconds_until_done(h, stream, "large", bound=8.0) > 0


def test_priority_lets_a_low_one_in_when_it_has_waited_for_the_difference():
    h = Harness(num_blocks=16, block_size=4, max_sequences=2, policy="priority")
    stream = Stream(h, width=4, tenant="many", priority=2)
    stream.refill()
    h.step()
    h.submit("low", h.prompt(20), max_tokens=8, tenant="one", priority=0)
    waited = seconds_until_done(h, stream, "low", bound=2 * SECONDS_PER_LEVEL + 8.0)
    assert waited > 2 * SECONDS_PER_LEVEL - 2.0, "until then the others are favoured"


def test_fair_serves_a_tenant_with_one_request_beside_one_with_many():
    h = Harness(num_blocks=16, block_size=4, max_sequences=2, policy="fair")
    stream = Stream(h, width=20, tenant="many")
    for _ in range(50):
        stream.refill()
        h.step()
    h.submit("one", h.prompt(20), max_tokens=8, tenant="one")
    seconds_until_done(h, stream, "one", bound=5.0)


def test_deadline_lets_one_without_a_deadline_in_when_its_patience_is_over():
    h = Harness(num_blocks=16, block_size=4, max_sequences=2, policy="deadline")
    stream = Stream(h, width=4, tenant="many", lifetime=5.0)
    stream.refill()
    h.step()
    h.submit("patient", h.prompt(20), max_tokens=8, tenant="one")
    waited = seconds_until_done(h, stream, "patient", bound=PATIENCE_SECONDS + 8.0)
    assert waited > PATIENCE_SECONDS - 10.0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_preempted_comes_back_while_others_never_end(policy):
    h = Harness(num_blocks=12, block_size=4, max_sequences=4, policy=policy)
    stream = Stream(h, width=4, prompt_length=4, max_tokens=24, tenant="many")
    stream.refill()
    for _ in range(3):
        h.step()
    h.submit("one", h.prompt(8), max_tokens=16, tenant="one")
    seconds_until_done(h, stream, "one", bound=60.0)


# Fairness (Sheng et al., OSDI 2024)


def service(h: Harness) -> Counter[str]:
    """Tokens that each tenant got: prompts count 1, output 2."""
    got: Counter[str] = Counter()
    for (handle, _), tokens in h.output.items():
        got[handle[0]] += 2 * len(tokens)
    for event in h.events:
        if event.kind is EventKind.PREFILL:
            got[event.handle[0]] += event.value
    return got


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("lengths", [(8, 8), (30, 4), (4, 24)])
def test_backlogged_tenants_are_served_in_proportion_to_their_weights(weights, lengths):
    """Theorem 4.4: with equal weights, service differs by at most 2 * max(w_p * L_input, w_q * M) at any time, where M
    is the tokens that a batch may hold. Weighted: so much of normalised service, over the smallest weight."""
    quotas = {"acme": Quota(weight=weights[0]), "beta": Quota(weight=weights[1])}
    h = Harness(num_blocks=24, block_size=4, max_sequences=4, policy="fair", quotas=quotas, prefix_caching=False)
    acme = Stream(h, width=6, prompt_length=lengths[0], max_tokens=8, tenant="acme")
    beta = Stream(h, width=6, prompt_length=lengths[1], max_tokens=16, tenant="beta")
    bound = 2 * max(1 * max(lengths), 2 * 24 * 4) / min(weights)
    for _ in range(600):
        acme.refill()
        beta.refill()
        h.step()
        got = service(h) if h.rng.random() < 0.05 else None
        if got is not None:
            assert abs(got["acme"] / weights[0] - got["beta"] / weights[1]) <= bound
    got = service(h)
    assert got["acme"] / got["beta"] == pytest.approx(weights[0] / weights[1], rel=0.15)
    h.run_and_check()


def test_idle_time_is_not_saved_up():
    h = Harness(num_blocks=64, block_size=4, max_sequences=2, policy="fair")
    busy = Stream(h, width=6, tenant="busy")
    lazy = Stream(h, width=6, tenant="lazy")
    h.submit(("lazy", 0), h.prompt(6), 6, tenant="lazy")
    for _ in range(200):
        busy.refill()
        h.step()
    before = service(h)
    assert before["busy"] > 20 * before["lazy"]
    for _ in range(100):
        busy.refill()
        lazy.refill()
        h.step()
    gained = {tenant: service(h)[tenant] - before[tenant] for tenant in before}
    assert gained["busy"] == pytest.approx(gained["lazy"], rel=0.25)


def test_a_new_tenant_does_not_pay_for_what_others_had_before():
    h = Harness(num_blocks=64, block_size=4, max_sequences=2, policy="fair")
    streams = [Stream(h, width=4, tenant="old")]
    for _ in range(100):
        streams[0].refill()
        h.step()
    streams.append(Stream(h, width=4, tenant="new"))
    before = service(h)
    for _ in range(100):
        for stream in streams:
            stream.refill()
        h.step()
    gained = {tenant: service(h)[tenant] - before[tenant] for tenant in ("old", "new")}
    assert gained["old"] == pytest.approx(gained["new"], rel=0.25)


def test_within_a_tenant_the_order_is_that_of_arrival():
    h = crowded("fair")
    for index in range(4):
        h.submit(index, h.prompt(5), tenant="acme")
    assert order(h) == [0, 1, 2, 3]
