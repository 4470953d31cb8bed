"""Executors that take steps and never answer: their requests go on elsewhere, or there when they are back."""

from __future__ import annotations

import random
import time

import pytest

from octavo.v1 import executor_pb2
from services.kvmanager import executor_link
from services.kvmanager.epochs import Deposed, Epochs
from services.state.leadership import NotLeader
from services.state.store import StateUnavailable
from tests.oracle import expected_output
from tests.services.kvmanager.conftest import MakeRig
from tests.services.kvmanager.oracle_service import OracleService

NO_STOP: frozenset[int] = frozenset()
PATIENCE = 0.3


def prompt_of(number: int) -> list[int]:
    return [number % 40 + 1, *range(2, 20)]


async def test_requests_of_an_executor_that_hangs_go_on_elsewhere(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two, executor_patience=PATIENCE)
    warm = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=3) for i in range(4)]
    for reply in warm:
        await rig.gateway.finished(reply)
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=100) for i in range(8)]
    for reply in replies:
        await rig.gateway.wait_for_tokens(reply, 2)
    one.hold()
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt_of(i), i, 0, 100, NO_STOP)
    (record,) = [each for each in caplog.records if each.message == "executor hangs"]
    assert record.address == one.address  # type: ignore[attr-defined]
    assert record.waited_seconds > record.bound_seconds >= PATIENCE  # type: ignore[attr-defined]
    one.go_on()
    await rig.eventually(rig.all_attached, "it is back")
    await rig.when_idle()


async def test_requests_wait_for_the_only_executor_and_health_says_so(make_rig: MakeRig) -> None:
    """What it computed under the old epoch is not taken in."""
    one = OracleService()
    rig = await make_rig(one, executor_patience=PATIENCE)
    reply = await rig.gateway.submit(prompt_of(1), seed=1, max_tokens=100)
    await rig.gateway.wait_for_tokens(reply, 2)
    epoch = one.epoch
    one.hold()
    await rig.gateway.wait_for_backend(ready=False)
    one.go_on()
    await rig.gateway.finished(reply)
    assert reply.sequences[0] == expected_output(prompt_of(1), 1, 0, 100, NO_STOP)
    assert one.epoch > epoch
    await rig.when_idle()


async def test_a_pause_of_the_kv_manager_loses_no_executor(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    """All of this test is one process: while it sleeps here nobody answers, and nobody waits."""
    one = OracleService()
    rig = await make_rig(one, executor_patience=PATIENCE)
    warm = await rig.gateway.submit(prompt_of(1), seed=1, max_tokens=3)
    await rig.gateway.finished(warm)
    reply = await rig.gateway.submit(prompt_of(2), seed=2, max_tokens=100)
    await rig.gateway.wait_for_tokens(reply, 2)
    epoch = one.epoch
    time.sleep(3 * PATIENCE)  # noqa: ASYNC251 - this is what is tested
    await rig.gateway.finished(reply)
    assert one.epoch == epoch
    assert "executor hangs" not in caplog.messages


@pytest.mark.slow
async def test_random_executors_hang_break_and_return(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is right, whatever happens meanwhile to two executors, and what they held is used again."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    monkeypatch.setattr(executor_link, "EXHAUSTED_SECONDS", 0.01)
    rng = random.Random(seed)
    executors = [OracleService(num_host_blocks=20) for _ in range(2)]
    rig = await make_rig(*executors, executor_patience=0.15)
    for round_ in range(12):
        numbers = [rng.randrange(1000) for _ in range(8)]
        replies = [await rig.gateway.submit(prompt_of(number), seed=number, max_tokens=80) for number in numbers]
        for number_of_fault in range(rng.randrange(4)):
            num_tokens = rng.randrange(200 * number_of_fault, 200 * number_of_fault + 200)
            await rig.eventually(
                lambda replies=replies, num_tokens=num_tokens: (
                    num_tokens <= sum(len(tokens) for reply in replies for tokens in reply.sequences.values())
                ),
                "so many tokens have come",
            )
            executor = rng.choice(executors)
            fault = rng.choice(["hangs", "breaks", "has no memory"])
            if fault == "has no memory":
                executor.num_exhausted += 1
                continue
            executor.hold()
            if fault == "breaks":
                await executor.kill()
            else:
                await rig.eventually(
                    lambda executor=executor: executor.address not in rig.manager.replicas or rig.manager.idle,
                    "it is lost, or nobody needs it",
                )
            executor.go_on()
            if fault == "breaks":
                await executor.start()
        for number, reply in zip(numbers, replies, strict=True):
            await rig.gateway.finished(reply)
            expected = expected_output(prompt_of(number), number, 0, 80, NO_STOP)
            assert reply.sequences[0] == expected, f"round {round_}, request {number}"
        await rig.when_idle()
    await rig.eventually(rig.all_attached, "both are back")


# Who leads


class Lead:
    """What a KV manager believes, and what the store has to say to it."""

    def __init__(self, error: Exception | None) -> None:
        self.reasons: list[str] = []
        self._error = error

    async def next_epoch(self, above: int) -> int:
        if self._error is not None:
            raise self._error
        return above + 1

    def depose(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("error", "seen", "ours", "outcome"),
    [
        (None, 7, 7, 8),
        (None, 9, 7, 10),  # the store says that we lead, whatever the executor has seen
        (NotLeader(), 7, 7, "the state store says so"),
        (NotLeader(), 0, None, "the state store says so"),
        (StateUnavailable(), 7, 7, 8),
        (StateUnavailable(), 7, None, 8),  # never met before: that of whoever led when the store was there
        (StateUnavailable(), 9, 7, "the executor has seen epoch 9, and 7 was ours"),
    ],
)
async def test_an_executor_is_not_taken_from_whoever_leads(
    error: Exception | None, seen: int, ours: int | None, outcome: int | str
) -> None:
    lead = Lead(error)
    epochs = Epochs(lead)
    description = executor_pb2.DescribeResponse(epoch=seen)
    if isinstance(outcome, int):
        assert await epochs.next(description, ours) == outcome
        assert lead.reasons == []
    else:
        with pytest.raises(Deposed, match=outcome):
            await epochs.next(description, ours)
        assert lead.reasons == [outcome]
