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
        fp_fusion: whether a product and a sum may become one instruction, which rounds once instead of twice.
        max_registers: of a thread; None: as many as the assembler settles for, which may be too few.
        made_for: compute capability of the smallest GPU that it suits.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: frozenset[str]
    num_warps: int
    num_stages: int
    fp_fusion: bool = True
    max_registers: int | None = None
    made_for: int = 80

    @property
    def min_capability(self) -> int:
        """Lowest compute capability that it can be compiled for, 80 or above: fp8 is converted from 8.9 on."""
        converts = any("fp8" in argument for argument in self.signature.values())
        return max(self.made_for, 89 if converts else 80)

    @property
    def options(self) -> dict[str, Any]:
        """Triton's options, for compiling and launching alike."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": self.fp_fusion,
            "maxnreg": self.max_registers,
        }

    def launch(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Runs it in the current stream, compiling it first where that is due.

        Args:
            grid: programs in each dimension, at most three.
            arguments: as `signature` lists them.
        """
        self.kernel[grid](*arguments, **self.constants, **self.options)
