"""Every form of every kernel that the executor can pick, compiled for every GPU that it runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu.compile import Compiled
from benchmarks.gpu.compile_pool import Task, compile_tasks
from benchmarks.gpu.lines import emit, tell

# A form takes some tenths of a second; one that spills may take minutes.
LIMIT_S = 120.0
_TOLD_EVERY = 50


def compile_all(tasks: Sequence[Task], processes: int, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Prints a line for each form and GPU.

    Returns:
        The summary: `kernels`, forms that were compiled; `spills`, how many need more registers than there are;
        `max_shared_bytes`, of all, and for each GPU; `seconds`, that compiling took all processes together; `faults`,
        what must not be launched and why.
    """
    results: list[Compiled] = []
    for result in compile_tasks(tasks, processes, limit_s):
        emit(_line(result))
        results.append(result)
        if len(results) % _TOLD_EVERY == 0:
            tell(f"{len(results)} of {len(tasks)} compiled")
    by_target: dict[str, list[Compiled]] = {}
    for result in sorted(results, key=lambda result: result.capability):
        by_target.setdefault(f"sm_{result.capability}", []).append(result)
    return {
        "kernels": len({result.name for result in results}),
        "compiled": len(results),
        "spills": sum(result.spill_bytes > 0 for result in results),
        "max_shared_bytes": _most_shared(results),
        "max_shared_bytes_by_target": {target: _most_shared(mine) for target, mine in by_target.items()},
        "max_registers": max((result.registers for result in results), default=0),
        "seconds": round(sum(result.seconds for result in results), 1),
        "faults": [f"{result.name}, sm_{result.capability}: {result.fault}" for result in results if result.fault],
    }


def _line(result: Compiled) -> dict[str, Any]:
    line = asdict(result)
    capability, name = line.pop("capability"), line.pop("name")
    line["seconds"] = round(result.seconds, 2)
    if not result.error:
        del line["error"]
    return {"kernel": name, "target": f"sm_{capability}", **line}


def _most_shared(results: Sequence[Compiled]) -> int:
    return max((result.shared_bytes for result in results), default=0)
