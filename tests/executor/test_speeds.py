"""Speeds, by a clock that the test holds."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch

from executor.loader import load_executor
from executor.settings import ExecutorSettings
from executor.speeds import SpeedMeter, is_prefill
from executor.step import Speeds
from executor.timer import Span, Timer

_MEASURED = Speeds(1000.0, 100.0, 50.0, 0.0)


class _Clock:
    """Moves on by `pace` seconds each time it is read."""

    def __init__(self, pace=1.0):
        self.now = 100.0
        self.pace = pace

    def __call__(self):
        self.now += self.pace
        return self.now


@pytest.fixture
def meter():
    return SpeedMeter(_MEASURED, Timer(torch.device("cpu"), _Clock()))


def test_small_changes_are_not_reported(meter):
    assert meter.report() is None
    meter.add("prefill_tokens_per_s", 1300, Span(0.0, 1.0))  # the mean moves to 1150
    assert meter.report() is None
    assert meter.reported == _MEASURED


def test_a_change_of_more_than_a_fifth_is_reported_once(meter):
    """Against what was reported last, even where every single step changes little."""
    reports = []
    for _ in range(40):
        meter.add("swap_out_blocks_per_s", 130, Span(5.0, 6.0))
        reports.append(meter.report())
    speeds = [report.swap_out_blocks_per_s for report in reports if report]
    assert len(speeds) == 1
    assert 120 < speeds[0] < 130
    assert meter.reported.swap_out_blocks_per_s == speeds[0]
    assert astuple(meter.reported)[0] == 1000.0


def test_late_steps_weigh_a_fifth(meter):
    for speed, expected in ((200, 150), (240, 180), (220, 190), (240, 200), (300, 220), (120, 200)):
        meter.add("swap_out_blocks_per_s", speed, Span(0.0, 1.0))
        meter.add("copy_blocks_per_s", 5, Span(0.0, 1.0))
        meter.report()
        assert meter._current["swap_out_blocks_per_s"] == pytest.approx(expected)


def test_speeds_that_fall_are_reported_too(meter):
    meter.add("swap_out_blocks_per_s", 50, Span(0.0, 1.0))
    assert meter.report().swap_out_blocks_per_s == pytest.approx(75)


def test_an_unknown_speed_is_known_after_one_step(meter):
    meter.add("copy_blocks_per_s", 3, Span(1.0, 3.0))
    assert meter.report() == Speeds(1000.0, 100.0, 50.0, 1.5)


def test_a_clock_that_stands_still_says_nothing(meter):
    meter.add("copy_blocks_per_s", 3, Span(1.0, 1.0))
    meter.add("prefill_tokens_per_s", 3, Span(1.0, 1.0))
    assert meter.report() is None


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        ([], False),
        ([1] * 300, False),
        ([63], False),
        ([64], True),
        ([100, 100], True),
        ([1] * 20 + [180], True),
        ([1] * 21 + [180], False),
    ],
)
def test_steps_that_tell_the_speed_of_prefill(num_tokens, expected):
    assert is_prefill(num_tokens) is expected


def _load(folder, clock, **settings):
    sizes = {"kv_memory": "2MiB", "host_memory": "60KiB"} | settings
    return load_executor(ExecutorSettings(model=folder, device="cpu", decoder="torch", **sizes), clock)


def test_speeds_are_measured_at_start(llama):
    """One second a measurement: a chunk of 64 tokens, and 8 blocks each way."""
    assert _load(llama[0], _Clock()).speeds == Speeds(64.0, 8.0, 8.0, 8.0)
    # Fast enough for more, up to the longest sequence, 128 tokens.
    assert _load(llama[0], _Clock(1e-6)).speeds.prefill_tokens_per_s == pytest.approx(128e6)


def test_what_there_is_too_little_of_stays_unknown(llama):
    assert _load(llama[0], _Clock(), host_memory="0").speeds == Speeds(64.0, 0.0, 0.0, 8.0)
    assert _load(llama[0], _Clock(), kv_memory="7KiB", host_memory="7KiB").speeds == Speeds(16.0, 1.0, 1.0, 0.0)


def test_measuring_leaves_nothing_behind(llama):
    """The blocks that it used are empty, and there is no sequence."""
    executor = _load(llama[0], _Clock(1e-6))
    assert not executor._sequences
    assert not executor._runner.arena.blocks[:8].any()
    assert executor.epoch == 0


def test_real_speeds_are_there_and_positive(llama, load):
    assert all(speed > 0 for speed in astuple(load(llama[0], host_memory="60KiB").speeds))


def test_steps_keep_the_speeds_current(llama, drive, prompt):
    clock = _Clock()
    driver = drive(_load(llama[0], clock))
    clock.pace = 0.5
    result = driver.run({0: 64}, [driver.new(0, prompt(100, seed=1))])  # 128 a second, where 64 were measured
    assert astuple(result.speeds) == pytest.approx((96.0, 8.0, 8.0, 8.0))
    assert driver.executor.speeds == result.speeds
    # A smaller chunk and a decode say nothing, however fast.
    clock.pace = 0.02
    assert driver.run({0: 36}).speeds is None
    assert driver.run({0: 1}).speeds is None
    # One block in each of the three ways, 50 a second.
    result = driver.step(driver.batch(swaps_out=[(0, 0)], swaps_in=[(0, 0)], block_copies=[(0, 1)]))
    assert astuple(result.speeds) == pytest.approx((96.0, 29.0, 29.0, 29.0))
    assert driver.run({0: 1}).speeds is None
