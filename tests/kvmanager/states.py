"""Harnesses with a request named "goes" in each state that there is, beside one named "stays"."""

from __future__ import annotations

from collections.abc import Callable

from kvmanager.cost_model import Preemption
from kvmanager.request import RequestState
from kvmanager.spec import BeamParams, PinOrder
from tests.kvmanager.harness import Harness


def waiting() -> Harness:
    h = Harness(num_blocks=8, block_size=4)
    h.submit("stays", h.prompt(20), max_tokens=8)
    h.step()
    h.submit("goes", h.prompt(20), max_tokens=4)
    h.step()
    assert h.request("goes").state is RequestState.WAITING
    return h


def prefilling() -> Harness:
    h = Harness(block_size=4, max_batched_tokens=16)
    h.submit("stays", h.prompt(5), max_tokens=8)
    h.submit("goes", h.prompt(60), max_tokens=8, n=2)
    h.step()
    sequence = h.request("goes").sequences[0]
    assert 0 < sequence.num_computed < 60
    return h


def decoding() -> Harness:
    h = Harness(block_size=4)
    h.submit("stays", h.prompt(5), max_tokens=8)
    h.submit("goes", h.prompt(9), max_tokens=20, n=3)
    for _ in range(3):
        h.step()
    assert len(h.replica.scheduler.decoding) == 4
    return h


def stalled() -> Harness:
    """It waits for a step that still uses the blocks of another that has left."""
    h = Harness(num_blocks=8, block_size=4, prefix_caching=False)
    h.submit("goes", h.prompt(11), max_tokens=12)
    h.submit("stays", h.prompt(2), max_tokens=3)
    h.submit("left", h.prompt(15), max_tokens=4)
    h.schedule()
    h.schedule()
    h.abort("left")
    h.result()
    h.schedule()
    (sequence,) = h.request("goes").sequences
    scheduler = h.replica.scheduler
    assert sequence.table
    assert sequence.sequence_id not in scheduler.decoding.sequences.keys() | scheduler.prefilling.keys()
    return h


def preempted() -> Harness:
    h = _preempted(Preemption.RECOMPUTE, RequestState.PREEMPTED)
    h.finish_steps()
    return h


def swapped() -> Harness:
    h = _preempted(Preemption.SWAP, RequestState.SWAPPED)
    h.finish_steps()
    return h


def _preempted(preemption: Preemption, state: RequestState) -> Harness:
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=20, preemption=preemption)
    h.submit("stays", h.prompt(6), max_tokens=16)
    h.submit("goes", h.prompt(5), max_tokens=8, n=2)
    while h.schedule() is None or h.request("goes").state is not state:
        if len(h.oracle.pending) == 2:
            h.result()
    return h


def just_preempted() -> Harness:
    """Its last tokens are still under way."""
    h = _preempted(Preemption.RECOMPUTE, RequestState.PREEMPTED)
    assert h.under_way("goes")
    return h


def just_swapped() -> Harness:
    """The copies to the host tier are under way, and so are its last tokens."""
    h = _preempted(Preemption.SWAP, RequestState.SWAPPED)
    assert h.oracle.pending[-1].swaps_out
    assert h.under_way("goes")
    return h


def beams_awaiting_candidates() -> Harness:
    h = Harness(block_size=4)
    h.submit("stays", h.prompt(5), max_tokens=8)
    h.submit("goes", h.prompt(6), max_tokens=8, n=2, beam=BeamParams(3))
    for _ in range(3):
        h.step()
    h.schedule()
    assert len(h.request("goes").sequences) == 3
    assert all(beam.candidates is None for beam in h.request("goes").sequences)
    return h


def beams_that_have_gone_on() -> Harness:
    """The executor has not heard of the new ones yet."""
    h = beams_awaiting_candidates()
    h.finish_steps()
    assert h.request("goes").choices
    return h


def homeless() -> Harness:
    h = Harness(block_size=4)
    h.submit("stays", h.prompt(5), max_tokens=8)
    h.submit("goes", h.prompt(9), max_tokens=8, n=2)
    for _ in range(2):
        h.step()
    h.detach()
    return h


def pin_being_computed() -> Harness:
    h = Harness(block_size=4, max_batched_tokens=16)
    h.submit("stays", h.prompt(5), max_tokens=8)
    h.submit("goes", h.prompt(40), max_tokens=1, pin=PinOrder("kept", 60.0))
    h.step()
    assert 0 < h.request("goes").sequences[0].num_computed < 40
    return h


STATES: list[Callable[[], Harness]] = [
    waiting,
    prefilling,
    decoding,
    stalled,
    preempted,
    just_preempted,
    swapped,
    just_swapped,
    beams_awaiting_candidates,
    beams_that_have_gone_on,
    homeless,
    pin_being_computed,
]
