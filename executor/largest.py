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
    smallest = values.topk(count, dim=-1).values[:, -1:]
    ids = mask_of_largest(values, smallest, count).nonzero()[:, 1].view(-1, count)
    descending = values.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return descending.values, ids.gather(-1, descending.indices)
