"""The start of an executor whose model the native kernels compute."""

import logging
from pathlib import Path
from typing import Any

import pytest

from executor.loader import load_executor
from executor.native.library import runnable_levels
from executor.settings import ExecutorSettings

pytestmark = pytest.mark.skipif(not runnable_levels(), reason="no kernels were built")


def test_weights_are_converted_once_and_whoever_waits_is_told(llama: tuple[Path, Any], tmp_path: Path) -> None:
    settings = ExecutorSettings(
        model=llama[0], kv_memory="2MiB", device="cpu", decoder="native", cache=tmp_path / "new"
    )
    told: list[tuple[str, int, int]] = []

    def start() -> set[str]:
        told.clear()
        load_executor(settings, on_progress=lambda *progress: told.append(progress))
        assert all(done <= total for _, done, total in told)
        return {task for task, _, _ in told}

    assert start() == {"Converting weights", "Reading converted weights"}
    assert start() == {"Reading converted weights"}
    weights = llama[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes())  # another version, by its time
    assert "Converting weights" in start()


def test_a_cache_that_cannot_be_written_costs_only_time(
    llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_bytes(b"")
    settings = ExecutorSettings(model=llama[0], kv_memory="2MiB", device="cpu", decoder="native", cache=in_the_way)
    with caplog.at_level(logging.WARNING):
        executor = load_executor(settings)
    assert executor.info.num_blocks > 0
    assert [record.getMessage() for record in caplog.records].count("converted weights are not kept") == 1
