"""ALiBi's slopes where the kernel reads them."""

from __future__ import annotations

import torch


class Slopes:
    """Tensors of slopes, each made once."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[tuple[float, ...], torch.device], torch.Tensor] = {}

    def tensor(self, slopes: tuple[float, ...], device: torch.device) -> torch.Tensor:
        """[heads], float32; a single number where there are no slopes."""
        key = (slopes, device)
        if key not in self._tensors:
            self._tensors[key] = torch.tensor(slopes or (0.0,), dtype=torch.float32, device=device)
        return self._tensors[key]
