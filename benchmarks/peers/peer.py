"""A peer as a running system: its driver in its own virtual environment, its model, its settings."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.answers import Answer
from benchmarks.line_process import LineProcess
from benchmarks.model import bf16_folder
from benchmarks.peers.bf16_gguf import bf16_gguf
from benchmarks.request_sets import RequestSet
from services.model_store import SMOLLM2, fetch_model

PEERS = ("vllm", "openvino", "llama")
WEIGHTS = ("bf16", "q4")


class Peer:
    """A running peer; a context manager that stops it.

    Attributes:
        name: of the system, with its weights.
        start_s: seconds from starting the driver until it could take a request.
        pid: of the driver, the parent of all other processes.
    """

    def __init__(
        self,
        peer: str,
        python: Path,
        weights: str = "",
        options: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """Starts it.

        Args:
            peer: one of `PEERS`.
            python: of the virtual environment that it is installed in.
            weights: one of `WEIGHTS`; empty: q4 of llama, bf16 of the others.
            options: settings of the peer, by name.
            log: file for what it prints; our standard error where None.

        Raises:
            ValueError: the peer does not have such weights.
            ChildFailed: it ended.
        """
        weights = weights or ("q4" if peer == "llama" else "bf16")
        self.name = f"{peer} {weights}"
        model = _model(peer, python, weights)
        command = [str(python), "-m", f"benchmarks.peers.{peer}_driver", "--model", str(model)]
        command += [f"--option={name}={value}" for name, value in (options or {}).items()]
        began = time.perf_counter()
        self._process = LineProcess(command, _environment(peer, python, options or {}), log)
        self._details = self._process.answer()["details"]
        self.start_s = time.perf_counter() - began
        self.pid = self._process.pid

    def run(self, requests: RequestSet) -> list[Answer]:
        """Has the driver send the requests, and waits for all answers."""
        question = {
            "requests": [[request.prompt, request.output_tokens] for request in requests.requests],
            "at_once": requests.at_once,
        }
        return [Answer(*answer) for answer in self._process.ask(question)["answers"]]

    def details(self) -> dict[str, Any]:
        """Version and settings."""
        return dict(self._details)

    def stop(self) -> None:
        """Ends the driver."""
        self._process.stop()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _environment(peer: str, python: Path, options: Mapping[str, str]) -> dict[str, str]:
    # The driver is this project's; all else is the virtual environment's.
    environment = os.environ | {"PYTHONPATH": str(Path(benchmarks.__file__).parent.parent)}
    # This project's executor keeps its OpenMP from spinning; others were built to wait that way.
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environment.pop(name, None)
    if peer == "vllm":
        # As its documentation recommends: Intel's OpenMP and tcmalloc, threads on both cores (one is kept free by
        # default). The cache holds the largest set.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        openmp = python.parent.parent / "lib" / "libiomp5.so"
        allocator = find_library("tcmalloc_minimal")
        preloaded = [str(openmp)] if openmp.exists() else []
        environment["LD_PRELOAD"] = ":".join([*preloaded, allocator] if allocator else preloaded)
        environment |= {name: value for name, value in options.items() if name.isupper()}
    return environment


def _model(peer: str, python: Path, weights: str) -> Path:
    if (peer, weights) == ("vllm", "bf16"):
        return bf16_folder()
    if (peer, weights) == ("openvino", "bf16"):
        return _openvino_folder(python)
    if (peer, weights) == ("llama", "bf16"):
        return bf16_gguf()
    if (peer, weights) == ("llama", "q4"):
        return fetch_model(SMOLLM2.name)
    raise ValueError(f"{peer} is not measured with {weights or 'these'} weights")


def _openvino_folder(python: Path) -> Path:
    """The model in OpenVINO's format, in the cache; converted in the peer's environment where it is not there yet."""
    folder = SMOLLM2.path.parent / "SmolLM2-135M-Instruct-openvino"
    if not folder.is_dir():
        scratch = folder.with_name(f"converting-{os.getpid()}")
        command = [str(python.with_name("optimum-cli")), "export", "openvino", "--model", str(bf16_folder())]
        command += ["--task", "text-generation-with-past", str(scratch)]
        subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True)
        scratch.rename(folder)
    return folder
