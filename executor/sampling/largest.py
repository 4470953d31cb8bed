"""The largest entries of each row, of equal ones those with lower ids."""

from __future__ import annotations

import torch


def mask_of_largest(values: torch.Tensor, smallest: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """True at the `count` largest values of each row.

    Args:
        values: [rows, n].
        smallest: [rows, 1], the `count`-th largest value.
        count: [rows, 1], or one for all rows.
    """
    above = values > smallest
    level = values == smallest
    room = count - above.sum(dim=-1, keepdim=True)
    return above | (level & (level.cumsum(dim=-1) <= room))


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest values of each row and their ids, in order. torch.topk promises none among equal values.

    Args:
        values: [rows, n] without NaN.

    Returns:
        Values and ids, [rows, count] each.
    """
    # Keys whose order is that of the values, then that of the ids backwards. A float's bits order as its value does,
    # those of negative ones backwards; 0 is added to make -0 the same as 0.
    bits = (values.to(torch.float32) + 0.0).view(torch.int32)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    last = values.shape[-1] - 1
    ids_backwards = last - torch.arange(values.shape[-1], device=values.device)
    keys = (order << 32) | ids_backwards
    ids = last - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
    return values.gather(-1, ids), ids
