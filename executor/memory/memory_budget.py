"""How much memory blocks get: from "512MiB" or "40%" to a number of them."""

from __future__ import annotations

import re
from collections.abc import Callable

from executor.errors import SettingsError

_UNITS = {"B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}IB"] = 1024**_power

AUTO = "auto"
CPU_KV_MEMORY = "512MiB"
"""What auto is on a CPU."""
GPU_MEMORY_UTILIZATION = 0.9
"""Share of a GPU's memory that may be in use where nothing else was said."""

_BUDGET = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|[A-Za-z]+)\s*")


def parse_budget(
    text: str, free_bytes: Callable[[], int], *, name: str = "kv_memory", may_be_nothing: bool = False
) -> int:
    """Bytes that a budget stands for.

    Args:
        text: a size ("512MiB", "2GB", "1.5 GiB") or a share of what is free ("40%"); "0" needs no unit.
        free_bytes: what is free now; asked only for a share.
        name: of the setting.
        may_be_nothing: whether 0 is allowed.

    Raises:
        SettingsError: if it is neither, or nothing, or a share above 100 %.
    """
    match = _BUDGET.fullmatch("0B" if text.strip() == "0" else text)
    if match is None:
        raise SettingsError(f"{name} {text!r} is neither a size like 512MiB nor a share of free memory like 40%")
    amount, unit = float(match[1]), match[2]
    if unit != "%" and unit.upper() not in _UNITS:
        raise SettingsError(f"{name} {text!r}: unknown unit {unit!r}; use MiB, GiB, MB, GB or %")
    if amount == 0 and may_be_nothing:
        return 0
    if unit == "%":
        if not 0 < amount <= 100:
            raise SettingsError(f"{name} {text!r}: a share must be above 0% and at most 100%")
        return int(free_bytes() * amount / 100)
    if amount == 0:
        raise SettingsError(f"{name} {text!r} is nothing")
    return int(amount * _UNITS[unit.upper()])


def blocks_in(budget: int, bytes_per_block: int, text: str, *, name: str = "kv_memory") -> int:
    """Whole blocks that fit into `budget` bytes.

    Raises:
        SettingsError: if not even one does; `text` is the budget as it was given, `name` that of the setting.
    """
    if budget < bytes_per_block:
        raise SettingsError(f"{name} {text!r} is {budget} bytes, less than one block of {bytes_per_block} bytes")
    return budget // bytes_per_block


def readable(num_bytes: int) -> str:
    """A size for people: "1.50 GiB"."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(num_bytes) >= 1 << power:
            return f"{num_bytes / (1 << power):.2f} {unit}"
    return f"{num_bytes} bytes"
