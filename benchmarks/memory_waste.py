"""`python -m benchmarks.memory_waste`: how much of the memory for keys and values holds none (the paper's figure 2).

The same requests, with ShareGPT-like lengths and all of them in the queue from the start, under the KV manager's core
and under the three Orcas (`benchmarks.baselines.orca`), in memory of the same size: that of OPT-13B on an A100 with
40 GB, 12 GiB for keys and values of 800 KiB a token (the paper's table 1). Prompts have nothing in common and each
request has one output, so nothing is shared.

Prints a JSON line for each system: the average number of running requests, shares of all slots over the iterations in
which requests wait (`benchmarks.memory_use` says what each is), and the paper's share of slots that hold tokens. What
the paper calls "external fragmentation & others" is rounding + external + unused here. The last line is the summary;
waste is 1 - tokens / (all slots - unused ones).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from benchmarks.baselines.orca import Orca, Reservation
from benchmarks.core_run import CoreRun
from benchmarks.memory_use import MemoryUse
from benchmarks.workloads import MAX_MODEL_LEN, SHAREGPT, RequestLengths

NUM_SLOTS = 15_728
"""12 GiB / (2 * 40 layers * 5,120 values * 2 bytes), and a multiple of 16."""

PAPER_TOKEN_SHARES = {"orca_max": 0.204, "orca_pow2": 0.268, "orca_oracle": 0.382, "octavo": 0.963}
"""Figure 2; in the last place vLLM's."""


def octavo(requests: Sequence[RequestLengths], block_size: int, seed: int) -> Iterator[MemoryUse]:
    """Memory use in those steps in which the core's counters look at it, while requests wait."""
    num_blocks = NUM_SLOTS // block_size
    run = CoreRun(requests, num_blocks, block_size, seed=seed)
    counters, slots, reserved, internal = run.manager.counters, 0, 0, 0
    for _ in run.steps():
        if not run.manager.num_waiting:
            return
        if counters.slot_steps == slots:
            continue
        allocated = counters.slot_steps - slots
        kept = counters.reserved_slot_steps - reserved
        partly = counters.internal_slot_steps - internal
        yield MemoryUse(
            tokens=allocated - kept - partly,
            reserved=kept,
            internal=partly,
            unused=num_blocks * block_size - allocated,
        )
        slots, reserved, internal = counters.slot_steps, counters.reserved_slot_steps, counters.internal_slot_steps


def orca(reservation: Reservation, requests: Sequence[RequestLengths]) -> Iterator[MemoryUse]:
    """Memory use in each iteration, while requests wait."""
    baseline = Orca(reservation, NUM_SLOTS, MAX_MODEL_LEN, requests)
    while baseline.waiting:
        yield baseline.iterate()


def main(
    requests: Annotated[int, typer.Option(min=100, help="Requests.")] = 2000,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block of the KV manager.")] = 16,
    seed: Annotated[int, typer.Option(help="Decides the lengths.")] = 0,
) -> None:
    """Measure the waste of memory on ShareGPT-like lengths."""
    lengths = SHAREGPT.draw(requests, seed)
    systems = {f"orca_{each.value}": orca(each, lengths) for each in Reservation}
    systems["octavo"] = octavo(lengths, block_size, seed)
    summary: dict[str, float] = {}
    for name, uses in systems.items():
        use = sum(uses, start=MemoryUse())
        shares = {key: round(share, 4) for key, share in use.shares().items()}
        line = {"system": name, "waste": round(use.waste, 4), **shares, "paper_tokens": PAPER_TOKEN_SHARES[name]}
        print(json.dumps(line), flush=True)
        summary[f"{name}_waste"] = round(use.waste, 4)
        summary[f"{name}_token_share"] = shares["tokens"]
    print(json.dumps({"requests": requests, "block_size": block_size, "seed": seed, **summary}))


if __name__ == "__main__":
    typer.run(main)
