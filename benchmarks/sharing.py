"""`python -m benchmarks.sharing`: memory saved by sharing in parallel sampling and beam search (the paper's figure 15).

Runs the KV manager's core on requests with Alpaca-like and ShareGPT-like lengths that have nothing in common, so only
sequences of one request share blocks. Saved is 1 - blocks in use / entries in all block tables, both added up over
steps. What beams share depends on how far back they part: their candidates come from `benchmarks.candidate_model`,
which is calibrated on a real model; `--similarity` shows how much depends on that.

Prints a JSON line for each case with the paper's range for 2 to 6 sequences; the last line is the summary.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.candidate_model import LONG_ANSWERS, SHORT_ANSWERS, BeamProfile
from benchmarks.core_run import CoreRun
from benchmarks.workloads import ALPACA, MAX_MODEL_LEN, SHAREGPT, RequestLengths

PAPER_RANGES = {
    ("alpaca", "parallel"): (0.061, 0.098),
    ("alpaca", "beam"): (0.376, 0.552),
    ("sharegpt", "parallel"): (0.162, 0.305),
    ("sharegpt", "beam"): (0.443, 0.663),
}
"""Section 6.3, from 2 to 6 sequences."""

PROFILES = {ALPACA: SHORT_ANSWERS, SHAREGPT: LONG_ANSWERS}
WIDTHS = (2, 4, 6)
CONCURRENT_REQUESTS = 16


def saved(
    method: str, width: int, lengths: list[RequestLengths], block_size: int, seed: int, profile: BeamProfile
) -> float:
    """The share of block-table entries that needed no block of their own."""
    blocks_per_request = width * -(-MAX_MODEL_LEN // block_size)
    run = CoreRun(
        lengths,
        CONCURRENT_REQUESTS * blocks_per_request,
        block_size,
        seed=seed,
        max_sequences=CONCURRENT_REQUESTS * width,
        n=width if method == "parallel" else 1,
        beam_width=width if method == "beam" else 0,
        profile=profile,
    )
    for _ in run.steps():
        pass
    counters = run.manager.counters
    return 1.0 - counters.slot_steps / counters.unshared_slot_steps


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of each case.")] = 1000,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block.")] = 16,
    seed: Annotated[int, typer.Option(help="Decides lengths and tokens.")] = 0,
    similarity: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of the beams of one search, instead of the measured one.")
    ] = None,
) -> None:
    """Measure how much memory sequences of one request share."""
    summary: dict[str, float] = {}
    for workload, profile in PROFILES.items():
        if similarity is not None:
            profile = replace(profile, similarity=similarity)
        lengths = workload.draw(requests, seed)
        for method in ("parallel", "beam"):
            for width in WIDTHS:
                share = round(saved(method, width, lengths, block_size, seed, profile), 4)
                case = {"workload": workload.name, "method": method, "sequences": width, "saved": share}
                paper = PAPER_RANGES[workload.name, method]
                print(json.dumps({**case, "paper_2_to_6": paper}), flush=True)
                summary[f"{workload.name}_{method}{width}_saved"] = share
    print(
        json.dumps({"requests": requests, "block_size": block_size, "seed": seed, "similarity": similarity, **summary})
    )


if __name__ == "__main__":
    typer.run(main)
