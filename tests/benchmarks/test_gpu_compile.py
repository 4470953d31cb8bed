"""Kernels compiled ahead of time for GPUs that are not here."""

import json
import random

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu.compile_all import compile_all
from benchmarks.gpu.compile_pool import Task, all_tasks, compile_tasks
from executor.attention.triton.attention import AttentionShape, ScoreForm
from executor.attention.triton.attention_forms import specs
from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.tile_sizes import HEAD_DIMS


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return all_tasks(["tests.benchmarks.sample_kernels", "tests.benchmarks.faulty_kernels"])


def test_forms_are_compiled_for_every_gpu_that_can_have_them_and_faults_are_told(tasks, capfd):
    bad = ["broken", "too many registers", "too much shared memory"]
    good = ["scale bf16", "scale fp8", "product"]
    chosen = [task for task in tasks if task[0].name in good or (task[0].name in bad and task[1] == 90)]

    summary = compile_all(chosen, processes=1)

    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["kernel"], line["target"]) for line in lines if line["kernel"] in good] == [
        ("scale bf16", "sm_80"),
        ("product", "sm_80"),
        *((name, "sm_90") for name in good),
        *((name, "sm_100") for name in good),
    ], "there is no fp8 on sm_80"
    assert all(line["registers"] > 0 for line in lines if line["kernel"] in good)

    faults = dict(fault.split(", sm_90: ", 1) for fault in summary["faults"])
    assert sorted(faults) == bad
    assert "spilled" in faults["too many registers"]
    assert "where there are 232448" in faults["too much shared memory"]
    assert "nothing is not defined" in faults["broken"]

    assert summary["kernels"] == 6
    assert summary["compiled"] == len(lines) == 8 + 3
    assert summary["spills"] == 1
    assert summary["max_shared_bytes"] == max(summary["max_shared_bytes_by_target"].values()) > 232448


@pytest.mark.slow
def test_a_form_that_takes_too_long_is_given_up_and_the_others_go_on(tasks):
    chosen = [task for task in tasks if task[0].name in ("endless", "scale fp8") and task[1] == 90]
    results = {result.name: result.fault for result in compile_tasks(reversed(chosen), processes=1, limit_s=6)}
    assert results == {"endless": "not compiled within 6 s", "scale fp8": ""}


def _check(tasks: list[Task], processes: int) -> None:
    summary = compile_all(tasks, processes)
    assert summary["compiled"] == len(tasks)
    assert summary["faults"] == []


def test_whatever_tiles_a_model_gets_are_among_those_that_are_compiled():
    listed = {tiles_of(spec) for spec in specs()}
    for _ in range(300):
        dtype, kv_dtype = random.choice(
            [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32), (torch.bfloat16, torch.float8_e4m3fn)]
        )
        shape = AttentionShape(dtype, kv_dtype, 8, random.randint(1, 130), random.choice(HEAD_DIMS), 16)
        assert {tiles_of(spec) for spec in specs([(shape, ScoreForm())])} <= listed, shape


def tiles_of(spec: KernelSpec) -> tuple[object, ...]:
    names = ("PADDED_DIM", "BLOCK_M", "BLOCK_N", "PEELED", "PARTIAL")
    constants = [spec.constants[name] for name in names]
    is_padded = spec.constants["PADDED_DIM"] != spec.constants["HEAD_DIM"]
    return (spec.signature["keys"], is_padded, spec.num_warps, spec.num_stages, spec.made_for, *constants)


def test_some_of_the_executors_kernels_fit_every_gpu():
    """One of each module, another in each run."""
    by_module: dict[str, list[Task]] = {}
    for task in all_tasks():
        by_module.setdefault(task[0].module, []).append(task)
    assert len(by_module) >= 4
    _check([random.choice(tasks) for tasks in by_module.values()], processes=1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_of_the_executors_kernels_fit_the_smallest_gpu_and_some_of_them_each_larger_one():
    """Others in each run; `make kernels` compiles all of them for all."""
    tasks = all_tasks()
    smallest = min(capability for _, capability in tasks)
    larger = [task for task in tasks if task[1] != smallest]
    _check([task for task in tasks if task[1] == smallest] + random.sample(larger, len(larger) // 5), processes=2)
