"""The three Orcas: what they reserve, whom they admit, and where their memory goes."""

from __future__ import annotations

import random

import pytest

from benchmarks.baselines.orca import Orca, Reservation
from benchmarks.memory_use import MemoryUse
from benchmarks.workloads import SHAREGPT, RequestLengths


@pytest.mark.parametrize(
    ("reservation", "slots"), [(Reservation.MAX, 2048), (Reservation.POW2, 42), (Reservation.ORACLE, 35)]
)
def test_reservations(reservation: Reservation, slots: int) -> None:
    assert reservation.slots(RequestLengths(10, 25), 2048) == slots


def test_no_reservation_exceeds_the_model() -> None:
    assert Reservation.POW2.slots(RequestLengths(1000, 600), 2048) == 2024
    assert Reservation.POW2.slots(RequestLengths(1000, 1040), 2048) == 2048


def test_a_request_from_its_prompt_to_its_last_token() -> None:
    orca = Orca(Reservation.POW2, 32, 64, [RequestLengths(4, 3)])
    expected = [
        MemoryUse(tokens=4, reserved=2, internal=2, unused=24),
        MemoryUse(tokens=5, reserved=1, internal=2, unused=24),
        MemoryUse(tokens=6, reserved=0, internal=2, unused=24),  # the third token is never fed back
        MemoryUse(unused=32),
    ]
    assert [orca.iterate() for _ in expected] == expected


def test_rounding_is_what_the_buddy_adds() -> None:
    use = Orca(Reservation.ORACLE, 32, 64, [RequestLengths(4, 5)]).iterate()
    assert use == MemoryUse(tokens=4, reserved=4, internal=1, rounding=7, unused=16)


def test_first_come_first_served_even_when_a_later_one_would_fit() -> None:
    orca = Orca(Reservation.ORACLE, 32, 64, [RequestLengths(14, 2), RequestLengths(20, 12), RequestLengths(1, 1)])
    first = orca.iterate()
    assert first.tokens == 14
    assert first.unused == 16  # the second one needs all there is
    assert [orca.iterate().tokens for _ in range(2)] == [15, 20]


def test_free_memory_in_pieces_is_external_fragmentation() -> None:
    long, short, large = RequestLengths(4, 4), RequestLengths(6, 2), RequestLengths(6, 6)
    orca = Orca(Reservation.ORACLE, 32, 64, [long, short, long, short, large])
    assert orca.iterate().external == 0
    orca.iterate()
    third = orca.iterate()  # the short ones are gone: 16 slots are free, in two pieces of 8; the large one needs 12
    assert third.external == 16
    assert third.waste == 1 - third.tokens / 32


def test_every_request_gets_all_its_tokens() -> None:
    requests = SHAREGPT.draw(60, seed=random.getrandbits(32))
    for reservation in Reservation:
        orca = Orca(reservation, 15_728, 2048, requests)
        use = MemoryUse()
        num_slots_used = sum(sum(range(each.prompt, each.total)) for each in requests)
        while orca.waiting or orca.running:
            step = orca.iterate()
            assert step.total == 15_728
            assert min(step.shares().values()) >= 0
            use += step
        assert use.tokens == num_slots_used


def test_a_request_that_never_fits_is_an_error() -> None:
    with pytest.raises(AssertionError, match="never fits"):
        Orca(Reservation.MAX, 100, 128, [RequestLengths(5, 5)]).iterate()
