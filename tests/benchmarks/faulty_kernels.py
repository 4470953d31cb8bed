"""Kernels that must not be launched."""

import time

import triton
import triton.language as tl

from executor.attention.triton.kernel_spec import KernelSpec
from tests.benchmarks.sample_kernels import product_spec


@triton.jit
def _broken(x):
    tl.store(x, nothing)  # noqa: F821


class _Endless:
    """Keeps whoever compiles it waiting."""

    @property
    def arg_names(self) -> list[str]:
        time.sleep(3600)
        return []


def specs() -> list[KernelSpec]:
    return [
        product_spec("too many registers", (128, 128, 32), 1, 1),
        product_spec("too much shared memory", (128, 128, 128), 8, 4),
        KernelSpec("broken", _broken, {"x": "*fp32"}, {}, frozenset(), 4, 1),
        KernelSpec("endless", _Endless(), {}, {}, frozenset(), 4, 1),
    ]
