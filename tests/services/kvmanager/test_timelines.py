"""The lives of requests, as a core in front of oracle executors makes them, and as they are told."""

from __future__ import annotations

import random

import pytest

from kvmanager.capacity import Capacity
from kvmanager.cost_model import Preemption
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.spec import RequestSpec, ResumedSequence
from kvmanager.step import Speeds
from octavo.v1 import monitoring_pb2
from services.kvmanager import timelines as module
from services.kvmanager.timeline_codec import TimelineEncoder
from services.kvmanager.timelines import Timelines
from tests.oracle import VOCAB_SIZE, Oracle

EXECUTOR = "one"


class Lives:
    """A core whose clock goes on by one second with each step, and its timelines."""

    def __init__(
        self,
        num_blocks: int = 40,
        block_size: int = 4,
        preemption: Preemption = Preemption.RECOMPUTE,
        num_host_blocks: int = 0,
        max_batched_tokens: int = 16,
        max_model_len: int = 1000,
    ) -> None:
        self.rng = random.Random(0)
        self.timelines = Timelines()
        self.manager = KVManager(
            Limits(max_batched_tokens, 8, 10_000), preemption=preemption, on_event=self.timelines.on_event
        )
        self.timelines.find = self.manager.requests.get
        self.now = 0.0
        self.capacity = Capacity(num_blocks, block_size, max_model_len, num_host_blocks)
        self.attach()

    def attach(self) -> None:
        self.manager.attach_executor(EXECUTOR, self.capacity, self.now, Speeds(1.0, 2.0, 3.0, 4.0))
        self.oracle = Oracle(
            self.capacity.num_blocks, self.capacity.block_size, self.rng, self.capacity.num_host_blocks
        )

    def submit(self, request_id: str, length: int, max_tokens: int = 4, tenant: str = "acme", **more: object) -> None:
        prompt = [self.rng.randrange(VOCAB_SIZE) for _ in range(length)]
        spec = RequestSpec(request_id, prompt, max_tokens=max_tokens, tenant=tenant, sampling=request_id, **more)  # type: ignore[arg-type]
        self.timelines.begin(spec, request_id)
        self.manager.submit(spec, self.now)

    def step(self) -> None:
        batch = self.manager.schedule(EXECUTOR, self.now)
        if batch is not None:
            self.oracle.send(batch)
        self.now += 1.0
        if (result := self.oracle.run()) is not None:
            self.manager.apply(EXECUTOR, result, self.now)

    def run(self) -> None:
        while not self.manager.idle:
            self.step()

    def told(self, request_id: str, to: str = "", tenant: str = "acme") -> monitoring_pb2.Timeline:
        found = self.timelines.get((tenant, request_id))
        assert found is not None
        return TimelineEncoder(1000.0, to).timeline(found, self.manager.requests.get(request_id))


def kinds(timeline: monitoring_pb2.Timeline) -> list[str]:
    names = (monitoring_pb2.DecisionKind.Name(each.kind) for each in timeline.decisions)
    return [name.removeprefix("DECISION_KIND_").lower() for name in names]


def reasons(timeline: monitoring_pb2.Timeline, kind: int) -> list[str]:
    return [each.reason for each in timeline.decisions if each.kind == kind]


def test_a_whole_life_in_order():
    lives = Lives()
    lives.submit("a", 20)
    lives.run()
    told = lives.told("a")
    assert kinds(told) == ["queued", "admitted", "prefill", "prefill", "first_token", "finished"]
    assert [(each.at.seconds, each.until.seconds, each.tokens) for each in told.decisions] == [
        (0, 0, 0),
        (0, 0, 0),
        (0, 1, 16),
        (1, 2, 4),
        (2, 0, 0),
        (5, 0, 4),
    ]
    request = told.request
    assert (request.request_id, request.tenant, request.executor) == ("a", "acme", EXECUTOR)
    assert request.state == monitoring_pb2.REQUEST_STATE_ENDED
    assert (request.reason, request.output_tokens, request.max_tokens) == ("length", 4, 4)
    assert (request.prompt_tokens, request.computed_tokens) == (20, 20)
    assert (request.arrived.seconds, request.ended.seconds) == (1000, 1005)
    assert reasons(told, monitoring_pb2.DECISION_KIND_ADMITTED) == ["no more of its prompt was in the prefix cache"]


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_who_is_preempted_for_whom_and_who_may_know(preemption: Preemption):
    lives = Lives(num_blocks=12, block_size=2, preemption=preemption, num_host_blocks=20)
    lives.submit("a", 6, max_tokens=17, tenant="acme")
    lives.submit("b", 6, max_tokens=17, tenant="beta")
    lives.submit("c", 6, max_tokens=17, tenant="beta")
    lives.run()
    told = lives.told("b", tenant="beta")
    assert kinds(told)[0] == "queued"
    assert kinds(told)[-1] == "finished"
    assert "preempted" in kinds(told)
    assert told.request.preemptions == kinds(told).count("preempted")
    how = "moved to the host tier" if preemption is Preemption.SWAP else "given up, to be computed again"
    said = reasons(told, monitoring_pb2.DECISION_KIND_PREEMPTED)
    assert f"its blocks were {how}, for want of free blocks; makes room for request a of acme" in said
    theirs = lives.told("b", to="beta", tenant="beta")
    assert kinds(theirs) == kinds(told)
    assert f"its blocks were {how}, for want of free blocks" in reasons(theirs, monitoring_pb2.DECISION_KIND_PREEMPTED)
    assert b"acme" not in theirs.SerializeToString()
    waited = reasons(lives.told("c", tenant="beta"), monitoring_pb2.DECISION_KIND_WAITED)
    assert any(each.startswith("waits for free blocks: ") and each.endswith("too few") for each in waited)
    assert any(each.step for each in told.decisions)
    for each in theirs.decisions:
        assert not each.step
        assert not any(character.isdigit() for character in each.reason)
    times = [each.at.ToNanoseconds() for each in told.decisions]
    assert times == sorted(times)


def test_a_request_that_waits_says_why():
    lives = Lives(num_blocks=12, block_size=2)
    lives.submit("a", 16, max_tokens=8)
    lives.submit("b", 16, max_tokens=8)
    lives.submit("c", 16, max_tokens=8)
    for _ in range(3):
        lives.step()
    first, second, third = (lives.told(name).request for name in "abc")
    assert (first.state, first.reason) == (monitoring_pb2.REQUEST_STATE_RUNNING, "")
    assert second.state == monitoring_pb2.REQUEST_STATE_WAITING
    assert second.reason.startswith("waits for free blocks: ")
    assert (third.state, third.reason) == (monitoring_pb2.REQUEST_STATE_WAITING, "in line")
    assert lives.told("b", to="acme").request.reason == "waits for free blocks"
    lives.run()


def test_how_requests_end():
    lives = Lives()
    lives.submit("gone", 8)
    lives.submit("late", 8, deadline=1.5)
    lives.submit("three", 8, n=3)
    lives.step()
    lives.manager.abort("gone", lives.now)
    lives.manager.expire(2.0)
    lives.run()
    assert lives.told("gone").request.reason == "its client has left, or wants no more"
    assert lives.told("late").request.reason == "the request's time is over"
    assert lives.told("three").request.reason == "3 x length"
    assert lives.told("three").request.output_tokens == 12


def test_an_executor_that_is_lost_and_steps_that_never_end():
    lives = Lives(max_batched_tokens=8)
    lives.submit("a", 30)
    for _ in range(2):
        lives.step()
    lives.manager.detach_executor(EXECUTOR, lives.now)
    lives.attach()
    lives.run()
    told = lives.told("a")
    assert reasons(told, monitoring_pb2.DECISION_KIND_PREEMPTED) == ["its executor was lost"]
    assert reasons(told, monitoring_pb2.DECISION_KIND_ADMITTED)[1] == "goes on"
    chunks = [each for each in told.decisions if each.kind == monitoring_pb2.DECISION_KIND_PREFILL]
    assert sum(each.tokens for each in chunks if each.HasField("until")) >= 30
    assert "a" not in lives.timelines._chunks


def test_what_a_resumed_request_had_already():
    lives = Lives()
    lives.submit("a", 8, resumed=(ResumedSequence([1, 2]),), resubmitted=True)
    lives.run()
    assert lives.told("a").decisions[0].reason == "goes on with 2 tokens that it had elsewhere"


def test_of_long_lives_chunks_in_the_middle_are_left_out():
    lives = Lives(num_blocks=1000, max_batched_tokens=8, max_model_len=4000)
    lives.submit("long", 3500, max_tokens=3)
    lives.run()
    told = lives.told("long")
    chunks = -(-3500 // 8)
    assert len(told.decisions) == module.MAX_DECISIONS
    assert told.decisions_left_out == chunks + 4 - module.MAX_DECISIONS
    assert kinds(told)[:2] == ["queued", "admitted"]
    assert kinds(told)[-2:] == ["first_token", "finished"]
    steps = [each.step for each in told.decisions if each.step]
    assert steps == sorted(steps)
    assert steps[-1] == steps[0] + chunks - 1


def test_only_the_last_ones_that_ended_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 5)
    lives = Lives()
    for number in range(12):
        lives.submit(f"r{number}", 4, max_tokens=1)
    lives.submit("r11 again", 4, max_tokens=1)
    lives.run()
    assert len(list(lives.timelines.ended)) == 5
    assert lives.timelines.get(("acme", "r0")) is None
    assert lives.timelines.get(("acme", "r11")) is not None
    assert lives.timelines.get(("beta", "r11")) is None
    assert not list(lives.timelines.live)
    assert len(lives.timelines._by_name) == 5


def test_a_refused_request_was_never_here():
    lives = Lives()
    spec = RequestSpec("a", [1] * 8, max_tokens=4, tenant="acme")
    lives.timelines.begin(spec, "a")
    lives.timelines.discard("a")
    assert lives.timelines.get(("acme", "a")) is None
    lives.submit("a", 8)
    lives.timelines.begin(spec, "a")  # the same handle again
    lives.timelines.discard("a")
    lives.run()
    assert kinds(lives.told("a"))[-1] == "finished"
