"""Kernels compiled ahead of time for GPUs that are not here."""

import json

import pytest

pytest.importorskip("triton")

from benchmarks.gpu.compile_all import compile_all
from benchmarks.gpu.compile_pool import Task, all_tasks, compile_tasks


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
