"""Kernels of this folder's tests are interpreted, whichever way pytest was started."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_one(x, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(x + at, tl.load(x + at) + 1)


def test_a_kernel_runs_on_cpu_tensors():
    x = torch.arange(16.0)
    _add_one[(1,)](x, 16)
    assert torch.equal(x, torch.arange(16.0) + 1)
