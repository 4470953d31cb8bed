"""Whether Triton's kernels can run here, found out without importing them."""

from __future__ import annotations

import torch

OLDEST_TRITON = (3, 5)
OLDEST_CAPABILITY = (8, 0)


def triton_obstacle(device: torch.device, capability: tuple[int, int] | None) -> str | None:
    """Why Triton can't compute on `device`, and what to do about it; None where it can.

    Args:
        capability: the GPU's compute capability, (8, 0) for sm_80; None of a CPU.
    """
    try:
        import triton
    except ImportError as error:
        return f"Triton can't be imported ({error}); PyTorch's builds for CUDA bring it, else: pip install triton"
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < OLDEST_TRITON:
        oldest = _dotted(OLDEST_TRITON)
        return f"Triton is {triton.__version__}; it must be {oldest} or newer: pip install -U torch triton"
    if device.type == "cpu":
        if not triton.knobs.runtime.interpret:
            return "on a CPU it runs only in Triton's interpreter, which is for tests (TRITON_INTERPRET=1)"
        return None
    if capability is None or capability < OLDEST_CAPABILITY:
        has = "none" if capability is None else _dotted(capability)
        return f"it needs a GPU of compute capability {_dotted(OLDEST_CAPABILITY)} or newer; this one has {has}"
    try:
        _ = triton.runtime.driver.active.utils
    except Exception as error:  # of a compiler, a linker, or what loads the outcome
        return (
            f"Triton can't build what launches kernels, for which it needs gcc or clang and Python's headers ({error})"
        )
    return None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
