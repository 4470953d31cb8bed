"""How fast the whole stack serves: `octavo serve`, driven over gRPC from outside, 64 requests submitted at once.

    python -m benchmarks.throughput --set alpaca

Token ids in, greedy, end of sequence ignored. Prints a JSON line for each round, with the speed of memory and
arithmetic beside it, and last the summary: `tokens_per_s` (output tokens), `cpu_s_per_1k` (processor seconds of all
processes for 1,000 output tokens), `ttft_ms_p50`, `start_s`, `rss_mb` (sum of the processes' peaks), and which kernels
ran. `benchmarks.peers` prints the same of others.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.measuring import Measurement, take_turns
from benchmarks.model import bf16_folder
from benchmarks.request_sets import SETS
from benchmarks.serving import OctavoServe


def add_set_arguments(parser: argparse.ArgumentParser) -> None:
    """What is sent, and how often."""
    parser.add_argument("--set", choices=SETS, required=True, help="which requests")
    parser.add_argument("--requests", type=int, help="how many; 64 at once, 1 stream or 8 prompts when absent")
    parser.add_argument("--rounds", type=int, default=3, help="times that the set is sent, with other tokens each time")
    parser.add_argument("--seed", type=int, default=0, help="decides the tokens")


def add_octavo_arguments(parser: argparse.ArgumentParser) -> None:
    """How the stack is started."""
    parser.add_argument("--model", help="folder, GGUF file or smollm2; SmolLM2-135M in bfloat16 when absent")
    parser.add_argument("--quantize", help="as of octavo serve")
    parser.add_argument("--dtype", default="bfloat16", help="as of octavo serve")
    parser.add_argument("--kv-memory", help="as of octavo serve; its default when absent")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="another flag of octavo serve; repeatable"
    )


def octavo_options(args: argparse.Namespace) -> dict[str, Any]:
    """Flags of `octavo serve` as the arguments say."""
    options: dict[str, Any] = {"dtype": args.dtype, "kv-memory": args.kv_memory, "quantize": args.quantize}
    return options | dict(option.split("=", 1) for option in args.option)


def start_octavo(args: argparse.Namespace) -> OctavoServe:
    """Starts the stack that the arguments describe."""
    return OctavoServe(args.model or bf16_folder(), octavo_options(args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_set_arguments(parser)
    add_octavo_arguments(parser)
    args = parser.parse_args()
    with start_octavo(args) as stack:
        measurement = Measurement(stack, args.set, args.seed, args.requests)
        take_turns([measurement], args.rounds)
        print(json.dumps(measurement.summary()))


if __name__ == "__main__":
    main()
