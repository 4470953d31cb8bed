"""What the split costs: the three-process stack against the same engine in one process, in turns.

    python -m benchmarks.split

64 requests at once, token ids in, greedy, end of sequence ignored. One side is `octavo serve` (gateway, KV manager,
executor), driven over gRPC from outside as `benchmarks.throughput` does it; the other is KV manager and executor in one
process, with two steps under way as in the services, but without gateway, gRPC or messages (`benchmarks.in_process`).
Prints a JSON line for each round of each, with the speed of memory and arithmetic beside it, then the summary of each,
and last the comparison: `throughput_ratio` (tokens per second of the stack over those of the one process, median over
rounds), `ttft_difference_ms` (of the median times to first token), and `cpu_s_per_1k` of both (processor seconds for
1,000 output tokens; the client's, which the one process has none of, are apart).
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from benchmarks.in_process import EngineProcess
from benchmarks.measuring import Measurement, equal_first_tokens, take_turns
from benchmarks.model import bf16_folder
from benchmarks.request_sets import SETS
from benchmarks.serving import OctavoServe
from benchmarks.throughput import add_octavo_arguments, octavo_options


def compare(stack: Measurement, engine: Measurement) -> dict[str, Any]:
    """The stack's rounds against those of the engine with the same tokens."""
    pairs = list(zip(stack.rounds, engine.rounds, strict=True))
    ratios = [split["tokens_per_s"] / whole["tokens_per_s"] for split, whole in pairs]
    waits = [split["ttft_ms_p50"] - whole["ttft_ms_p50"] for split, whole in pairs]
    return {
        "set": stack.name,
        "rounds": len(pairs),
        "throughput_ratio": round(statistics.median(ratios), 4),
        "throughput_ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
        "ttft_difference_ms": round(statistics.median(waits), 2),
        "cpu_s_per_1k": {
            "stack": _median(stack, "cpu_s_per_1k"),
            "client": _median(stack, "client_cpu_s_per_1k"),
            "one_process": _median(engine, "cpu_s_per_1k"),
        },
        "equal_first_tokens": round(equal_first_tokens(stack, engine), 3),
    }


def _median(measurement: Measurement, name: str) -> float:
    return round(float(statistics.median(each[name] for each in measurement.rounds)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="alpaca", help="which requests")
    parser.add_argument("--requests", type=int, help="how many; the set's own number when absent")
    parser.add_argument("--rounds", type=int, default=6, help="times that each side gets the set")
    parser.add_argument("--seed", type=int, default=0, help="decides the tokens")
    add_octavo_arguments(parser)
    args = parser.parse_args()
    model, options = args.model or bf16_folder(), octavo_options(args)
    with OctavoServe(model, options) as stack, EngineProcess(model, options) as engine:
        sides = [Measurement(each, args.set, args.seed, args.requests) for each in (stack, engine)]
        take_turns(sides, args.rounds)
        for side in sides:
            print(json.dumps(side.summary()))
        print(json.dumps(compare(*sides)))


if __name__ == "__main__":
    main()
