"""How fast memory and arithmetic are right now: figures that stand beside every measurement.

The host's memory speed drifts by 2 and more within hours, so a throughput means something only beside these.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np
import numpy.typing as npt

from benchmarks.line_process import LineProcess

MEMORY_BYTES = 512 << 20
"""What is read: more than a processor's cache holds."""

_MATRIX = 512
_READ_PASSES = 2
_PRODUCTS = 20

# These name an old processor's kernels on some hosts.
_FOREIGN_SETTINGS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class Probe:
    """Measures when it is asked, in a process of its own whose memory stays touched; a context manager."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN_SETTINGS}
        command = [sys.executable, "-m", "benchmarks.probe", str(memory_bytes)]
        # One thread a product: threads are added here.
        self._process = LineProcess(command, environment | {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

    def measure(self) -> dict[str, float]:
        """Takes about a third of a second.

        Returns:
            `read_gb_s_1` and `read_gb_s_2`: bytes that one and two threads read from memory, in 10**9 a second;
            `fp32_gflops_1` and `fp32_gflops_2`: the same of float32 operations of matrix products that stay in cache.
        """
        return {name: float(value) for name, value in self._process.ask({}).items()}

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()


class _Memory:
    """What is read and multiplied."""

    def __init__(self, memory_bytes: int) -> None:
        self._values = np.ones(memory_bytes // 8 * 2, dtype=np.float32)
        self._matrices = [np.full((_MATRIX, _MATRIX), 1 / _MATRIX, dtype=np.float32) for _ in range(2)]
        self._products = [np.empty_like(matrix) for matrix in self._matrices]

    def read(self, part: npt.NDArray[np.float32]) -> None:
        for _ in range(_READ_PASSES):
            np.dot(part, part)

    def multiply(self, thread: int) -> None:
        for _ in range(_PRODUCTS):
            np.matmul(self._matrices[thread], self._matrices[thread], out=self._products[thread])

    def measure(self, pool: ThreadPoolExecutor) -> dict[str, float]:
        halves = np.split(self._values, 2)
        num_bytes = self._values.nbytes * _READ_PASSES
        flops = 2 * _MATRIX**3 * _PRODUCTS
        one_read = _seconds(lambda: self.read(self._values))
        two_reads = _seconds(lambda: list(pool.map(self.read, halves)))
        one_multiplies = _seconds(lambda: self.multiply(0))
        two_multiply = _seconds(lambda: list(pool.map(self.multiply, range(2))))
        return {
            "read_gb_s_1": round(num_bytes / one_read / 1e9, 1),
            "read_gb_s_2": round(num_bytes / two_reads / 1e9, 1),
            "fp32_gflops_1": round(flops / one_multiplies / 1e9, 1),
            "fp32_gflops_2": round(2 * flops / two_multiply / 1e9, 1),
        }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Answers each line of the standard input with one measurement. The argument says how many bytes are read."""
    memory = _Memory(int(sys.argv[1]))
    with ThreadPoolExecutor(2) as pool:
        for _ in sys.stdin:
            print(json.dumps(memory.measure(pool)), flush=True)


if __name__ == "__main__":
    main()
