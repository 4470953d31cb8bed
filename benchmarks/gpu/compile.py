"""Compiles forms of kernels ahead of time, for GPUs that need not be here, and reads back what they take of one.

Nothing of Triton is imported before a function is called: the processes of `benchmarks.gpu.compile_pool` choose first
that nothing is interpreted in them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.attention.triton.kernel_spec import KernelSpec

# Compute capability -> shared memory that a block of threads can have, in bytes (CUDA C++ Programming Guide, technical
# specifications by compute capability).
SHARED_LIMITS = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
# Columns of tensor memory that a processor of compute capability 10.0 has (PTX ISA, tcgen05.alloc).
TENSOR_MEMORY_LIMIT = 512

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a kernel, by the module whose `specs()` lists it."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a form of a kernel takes of a GPU.

    Attributes:
        capability: what it was compiled for; 90 is sm_90.
        registers: of a thread.
        spill_bytes: of a thread, stored and loaded, because registers did not suffice.
        shared_bytes: of a block of threads.
        tensor_columns: of tensor memory.
        seconds: that compiling took.
        error: why there is none of this; empty where there is.
    """

    name: str
    capability: int
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    tensor_columns: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def fault(self) -> str:
        """Why it can't be launched, or should not be; empty where it can."""
        limit = SHARED_LIMITS[self.capability]
        if self.error:
            return self.error
        if self.spill_bytes:
            return f"{self.spill_bytes} bytes of registers are spilled"
        if self.shared_bytes > limit:
            return f"{self.shared_bytes} bytes of shared memory where there are {limit}"
        if self.tensor_columns > TENSOR_MEMORY_LIMIT:
            return f"{self.tensor_columns} columns of tensor memory where there are {TENSOR_MEMORY_LIMIT}"
        return ""


def kernel_modules() -> list[str]:
    """Names of the modules that list forms of kernels."""
    package = importlib.import_module("executor.attention.triton")
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return [name for name in names if hasattr(importlib.import_module(name), "specs")]


def forms(module: str) -> list[tuple[Form, int]]:
    """A module's forms with the lowest capability of each.

    Raises:
        ValueError: two have the same name.
    """
    specs = _specs(module)
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{module}: several forms are called {', '.join(twice)}")
    return [(Form(module, spec.name), spec.min_capability) for spec in specs]


def compile_form(form: Form, capability: int) -> Compiled:
    """Compiles one of a module's forms.

    Raises:
        Exception: whatever Triton raises.
    """
    return compile_spec(next(spec for spec in _specs(form.module) if spec.name == form.name), capability)


def compile_spec(spec: KernelSpec, capability: int) -> Compiled:
    """Compiles a form as launching it would, but for `capability`.

    Raises:
        Exception: whatever Triton raises.
    """
    triton: Any = importlib.import_module("triton")
    gpu_target: Any = importlib.import_module("triton.backends.compiler").GPUTarget

    names = spec.kernel.arg_names
    signature = {name: spec.signature.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in spec.constants.items()}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in spec.aligned}
    source = triton.compiler.ASTSource(spec.kernel, signature, constants, attributes)
    # The assembler's messages are the only place where spills are told.
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True
    log = io.StringIO()
    began = time.perf_counter()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(source, target=gpu_target("cuda", capability, 32), options=spec.options)
    return Compiled(
        name=spec.name,
        capability=capability,
        registers=max(map(int, _REGISTERS.findall(log.getvalue()))),
        spill_bytes=sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(log.getvalue())),
        shared_bytes=compiled.metadata.shared,
        tensor_columns=getattr(compiled.metadata, "tmem_size", 0),
        seconds=time.perf_counter() - began,
    )


def _specs(module: str) -> list[KernelSpec]:
    specs: list[KernelSpec] = importlib.import_module(module).specs()
    return specs
