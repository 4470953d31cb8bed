"""The script for GPUs: what it calls right and wrong, and all of it once in Triton's interpreter."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from benchmarks.gpu.check_attention import check_attention
from benchmarks.gpu.check_moves import check_moves
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Parts
from benchmarks.gpu.reference import attention, relative_error, rotated
from benchmarks.gpu.results import Checks, within
from benchmarks.gpu.shapes import TINY
from executor.attention import AttentionParams, AttentionPlan, ReferenceAttention, StepLayout
from executor.attention.reference import SlotCache
from executor.memory.block_copier import Pairs
from executor.memory.block_mover import DirectMover
from executor.rotary import rotate
from executor.timer import Span


def _lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_does_not_hold_is_told(capsys):
    def broken() -> float:
        raise RuntimeError("no kernel")

    checks = Checks()
    checks.measure("good", 0.5, lambda: 0.4)
    checks.measure("bad", 0.5, lambda: 0.6, dtype="float16")
    checks.measure("never finite", 0.5, lambda: math.inf)
    checks.measure("broken", 0.5, broken)
    checks.holds("true", lambda: True)
    checks.holds("false", lambda: False)
    checks.skip("graphs", "there is no GPU")

    lines = _lines(capsys.readouterr().out)
    assert [line["check"] for line in lines if line.get("ok")] == ["good", "true"]
    assert lines[3]["raised"] == "RuntimeError: no kernel"
    summary = checks.summary()
    assert summary["checks"] == 6
    assert [name.split(":")[0] for name in summary["failed"]] == ["bad", "never finite", "broken", "false"]
    assert summary["skipped"] == ["graphs"]


def test_an_error_is_the_worst_vectors_and_nan_is_never_small():
    expected = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    assert relative_error(expected.float(), expected) == 0
    assert relative_error(expected + torch.tensor([[0.0, 0.5], [0.0, 0.02]]), expected) == pytest.approx(0.1)
    assert relative_error(torch.tensor([[3.0, 4.0], [math.nan, 1.0]]), expected) == math.inf


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
@pytest.mark.parametrize("slopes", [(), (0.5, 0.25, 0.125, 0.0625)])
def test_the_reference_is_attention_written_out(window, soft_cap, slopes):
    queries, keys, values = torch.randn(3, 4, 8), torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    result = attention(queries, keys, values, AttentionParams(0.3, soft_cap, window, slopes))
    for query in range(3):
        at = 4 + query
        seen = range(max(0, at - window + 1) if window else 0, at + 1)
        for head in range(4):
            scores = [0.3 * float(queries[query, head].double() @ keys[key, head // 2].double()) for key in seen]
            scores = [soft_cap * math.tanh(score / soft_cap) if soft_cap else score for score in scores]
            scores = [
                score + (slopes[head] * (key - at) if slopes else 0) for score, key in zip(scores, seen, strict=True)
            ]
            weights = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0)
            expected = sum(weight * values[key, head // 2].double() for weight, key in zip(weights, seen, strict=True))
            torch.testing.assert_close(result[query, head], expected)


def test_the_reference_turns_as_the_decoder_does():
    heads, angle = torch.randn(5, 3, 16, dtype=torch.float64), torch.randn(5, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(rotated(heads, (angle.cos(), angle.sin())), rotate(heads, angle.cos(), angle.sin()))


def test_what_there_is_no_time_for_is_left_out(capsys):
    assert list(within(60, "something", [1, 2])) == [1, 2]
    assert list(within(-1, "decode", [1, 2])) == []
    assert _lines(capsys.readouterr().out) == [{"part": "decode", "left_out": 2, "why": "the -1 s for it were over"}]


def test_a_part_that_fails_does_not_end_the_others_and_none_begins_too_late(capsys):
    def broken() -> None:
        raise RuntimeError("no memory")

    parts = Parts(60)
    parts.run("decode", broken)
    parts.run("prefill", lambda: 3)
    assert parts.summary == {"prefill": 3}
    assert parts.failed == ["decode"]
    Parts(-1).run("swaps", broken)
    first, second = _lines(capsys.readouterr().out)
    assert first == {"part": "decode", "failed": "RuntimeError: no memory"}
    assert second["part"] == "swaps"
    assert second["left_out"]


class _Right(ReferenceAttention):
    wrong: ClassVar[dict[str, float]] = {}

    def plan(self, layout: StepLayout, device: torch.device) -> Any:
        return _Plan(super().plan(layout, device), self.wrong)


class _WrongScale(_Right):
    wrong: ClassVar[dict[str, float]] = {"scale": 0.2}


class _NoCap(_Right):
    wrong: ClassVar[dict[str, float]] = {"soft_cap": 0.0}


class _Plan(AttentionPlan[SlotCache]):
    def __init__(self, plan: AttentionPlan[SlotCache], wrong: dict[str, float]) -> None:
        self._plan, self._wrong = plan, wrong

    def write(self, cache: SlotCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._plan.write(cache, keys, values)

    def attend(self, cache: SlotCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        return self._plan.attend(cache, queries, replace(params, **self._wrong))


@pytest.mark.parametrize(("backend", "is_right"), [(_Right, True), (_WrongScale, False), (_NoCap, False)])
def test_attention_that_is_wrong_is_found(backend, is_right, capsys):
    checks = Checks()
    check_attention(Machine.of(torch.device("cpu")), backend, checks, seconds=60, seed=random.randrange(1 << 30))
    assert checks.num_checks == 4
    assert (not checks.failed) == is_right, capsys.readouterr().out


class _Lossy(DirectMover):
    def swap_out(self, pairs: Pairs) -> Span:
        return super().swap_out(pairs[:-1])


@pytest.mark.parametrize(("mover", "is_right"), [(DirectMover, True), (_Lossy, False)])
def test_a_block_that_does_not_arrive_is_found(mover, is_right, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.check_moves.make_mover", mover)
    checks = Checks()
    layout = ReferenceAttention().block_layout(TINY.description(), 8, torch.float32)
    check_moves(Machine.of(torch.device("cpu")), layout, 8, checks, seed=random.randrange(1 << 30))
    assert checks.num_checks == 2
    assert (not checks.failed) == is_right, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_of_it_runs_in_the_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--check", "--time"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr + run.stdout
    first, *lines, last = _lines(run.stdout)
    assert first["machine"]["interpreted"] is True
    assert {line["check"] for line in lines if line.get("ok")} == {
        "attention",
        "decode plan",
        "block moves",
        "greedy answers",
    }
    assert {line["part"] for line in lines if "part" in line} == {"decode", "prefill", "prefix", "swaps", "step"}
    summary = last["summary"]
    assert summary["failed"] == []
    assert summary["check"]["checks"] == len([line for line in lines if "limit" in line])
    assert summary["check"]["skipped"] == ["memory"]
    assert {"copy", "decode", "prefill", "prefix", "swaps", "step"} <= summary.keys()
