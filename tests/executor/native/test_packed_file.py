"""Converted weights that are kept in a file."""

import logging
import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.native.packed_file import Writer, open_or_build, packed_path, source_key

Arrays = dict[str, np.ndarray[Any, Any]]


class Source:
    """What is converted, and how often it was."""

    def __init__(self) -> None:
        self.seed = random.randrange(1 << 32)
        generator = np.random.default_rng(self.seed)
        sizes = [0, 1, 63, 64, 65, 5_000_000, 9_000_001, *generator.integers(1, 4000, 20)]
        self.arrays: Arrays = {f"layers.{i}.weight": generator.bytes(size) for i, size in enumerate(sizes)}  # type: ignore[misc]
        self.arrays = {name: np.frombuffer(data, np.uint8) for name, data in self.arrays.items()}
        self.arrays["matrix"] = generator.random((37, 11), np.float32).T  # not contiguous
        self.builds = 0

    def build(self, writer: Writer) -> None:
        self.builds += 1
        for name, array in self.arrays.items():
            writer.add(name, array)

    def check(self, buffers: Arrays) -> None:
        assert list(buffers) == list(self.arrays)
        for name, array in self.arrays.items():
            assert buffers[name].tobytes() == array.tobytes(), f"{name}, seed {self.seed}"
            assert buffers[name].ctypes.data % 64 == 0 or not array.size


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "model.packed"


KEY = {"layout": 1}


def test_buffers_are_built_once_and_read_from_then_on(source: Source, path: Path) -> None:
    read: list[tuple[int, int]] = []
    for _ in range(3):
        read.clear()
        source.check(open_or_build(path, KEY, source.build, lambda task, done, total: read.append((done, total))))
    assert source.builds == 1
    assert read == sorted(read)
    assert read[-1][0] == read[-1][1] >= sum(array.nbytes for array in source.arrays.values())
    assert {file.suffix for file in path.parent.iterdir()} == {".packed", ".lock"}


def test_another_key_is_another_conversion(source: Source, path: Path) -> None:
    open_or_build(path, KEY, source.build)
    other = Source()
    other.check(open_or_build(path, {"layout": 2}, other.build))
    other.check(open_or_build(path, {"layout": 2}, other.build))
    assert other.builds == 1
    source.check(open_or_build(path, KEY, source.build))
    assert source.builds == 2


def test_a_key_follows_the_files_that_it_is_made_from(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    key = source_key([model], kind="int8")
    assert source_key([model], kind="int8") == key
    assert source_key([model], kind="bfloat16") != key
    os.utime(model, ns=(0, model.stat().st_mtime_ns + 1))
    assert source_key([model], kind="int8") != key
    assert packed_path(tmp_path, model, "int8") != packed_path(tmp_path, model, "bfloat16")
    assert packed_path(tmp_path, model, "int8") != packed_path(tmp_path, tmp_path / "other" / "model.gguf", "int8")


def test_what_was_made_from_files_that_are_gone_is_removed(source: Source, tmp_path: Path) -> None:
    models = [tmp_path / f"{name}.gguf" for name in ("old", "kept", "new")]
    paths = [packed_path(tmp_path / "cache", model, "int8") for model in models]
    for model, path in zip(models[:2], paths[:2], strict=True):
        model.write_bytes(b"weights")
        open_or_build(path, source_key([model]), source.build)
    models[0].unlink()
    models[2].write_bytes(b"weights")
    assert paths[0].exists()
    open_or_build(paths[2], source_key([models[2]]), source.build)
    assert {path.name for path in paths[0].parent.glob("*.packed")} == {path.name for path in paths[1:]}
    assert not paths[0].with_suffix(".lock").exists()


def _truncate(path: Path) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    # Anywhere but in the padding of the prefix, which nobody reads.
    place = random.choice([*range(28), random.randrange(64, len(content))])
    content[place] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _zero_a_page(path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = random.randrange(len(content) // 4096) * 4096
    content[start : start + 4096] = bytes(4096)
    path.write_bytes(content)


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, _zero_a_page, _append, _empty])
def test_a_damaged_file_is_built_again(source: Source, path: Path, damage: Callable[[Path], None]) -> None:
    open_or_build(path, KEY, source.build)
    damage(path)
    source.check(open_or_build(path, KEY, source.build))
    assert source.builds == 2
    source.check(open_or_build(path, KEY, source.build))
    assert source.builds == 2


@pytest.mark.parametrize("obstacle", ["a file in the way", "a folder in the way", "a full disk"])
def test_what_cannot_be_written_is_built_in_memory_and_the_log_says_so(
    source: Source, path: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if obstacle == "a file in the way":
        path.parent.write_bytes(b"")
    elif obstacle == "a folder in the way":
        (path / "inside").mkdir(parents=True)
    else:
        monkeypatch.setattr(os, "pwrite", _no_space)
    with caplog.at_level(logging.WARNING):
        source.check(open_or_build(path, KEY, source.build))
    assert [record.getMessage() for record in caplog.records] == ["converted weights are not kept"]
    assert not path.with_suffix(".partial").exists()


def _no_space(*_: Any) -> int:
    raise OSError(28, os.strerror(28))


def test_nothing_is_kept_without_a_path(source: Source) -> None:
    source.check(open_or_build(None, KEY, source.build))


def test_a_build_that_fails_leaves_nothing_and_says_why(source: Source, path: Path) -> None:
    def build(writer: Writer) -> None:
        writer.add("one", np.ones(100_000))
        raise FileNotFoundError("the model is gone")

    with pytest.raises(FileNotFoundError, match="the model is gone"):
        open_or_build(path, KEY, build)
    assert {file.suffix for file in path.parent.iterdir()} == {".lock"}
    source.check(open_or_build(path, KEY, source.build))


@pytest.mark.parametrize("kept", [True, False])
def test_two_buffers_of_one_name_are_refused(path: Path, kept: bool) -> None:
    def build(writer: Writer) -> None:
        writer.add("one", np.ones(3))
        writer.add("one", np.ones(3))

    with pytest.raises(ValueError, match="'one'"):
        open_or_build(path if kept else None, KEY, build)


def test_a_process_that_was_killed_while_it_wrote_is_no_obstacle(source: Source, path: Path) -> None:
    path.parent.mkdir()
    path.with_suffix(".partial").write_bytes(b"x" * 20_000_000)
    source.check(open_or_build(path, KEY, source.build))
    assert not path.with_suffix(".partial").exists()
    assert path.stat().st_size < 20_000_000


def test_of_processes_that_start_at_once_one_builds(path: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_start, args=(path, built, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(list(built.iterdir())) == 1


def _start(path: Path, built: Path, barrier: Any) -> None:
    def build(writer: Writer) -> None:
        (built / str(os.getpid())).touch()
        writer.add("ones", np.ones(1_000_000, np.float32))

    barrier.wait(50)
    buffers = open_or_build(path, KEY, build)
    assert buffers["ones"].view(np.float32).sum() == 1_000_000
