"""One form of a kernel that can be compiled: what is fixed when it is, and what is passed when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel with its argument types and constants; launching it and compiling it ahead of time use the same one.

    Attributes:
        name: for people, such as "attention bf16 d128 g4 b16 decode"; unique.
        kernel: the function, as `triton.jit` has made it.
        signature: the type of each argument that is passed, in order, as Triton writes it: "*bf16", "i32", "i64",
            "fp32".
        constants: the value of each `tl.constexpr` argument.
        aligned: arguments that are always multiples of 16, pointers in bytes.
        num_warps, num_stages: as Triton's options.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: frozenset[str]
    num_warps: int
    num_stages: int
