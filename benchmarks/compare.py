"""Octavo and other systems in one run, in turns, with the same requests.

    python -m benchmarks.compare --set alpaca --peer vllm=PATH/TO/ITS/VENV/bin/python --peer openvino=...

The host's speed drifts, so a ratio means something only where both sides were measured in turns. Prints what
`benchmarks.throughput` prints of every system, and last a line with each peer's `ratio`: the median over the rounds of
Octavo's tokens per second over the peer's (of the first token's time, the peer's over Octavo's, in the set ttft).
`equal_first_tokens` is the share of requests that both answered with the same first token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measuring import Measurement, System, equal_first_tokens, take_turns
from benchmarks.peers.peer import Peer
from benchmarks.throughput import add_octavo_arguments, add_set_arguments, start_octavo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_set_arguments(parser)
    add_octavo_arguments(parser)
    parser.add_argument(
        "--peer",
        action="append",
        required=True,
        metavar="NAME[:WEIGHTS]=PYTHON",
        help="a system as benchmarks.peers knows it, and the Python of its environment; repeatable",
    )
    parser.add_argument(
        "--peer-option", action="append", default=[], metavar="NAME:SETTING=VALUE", help="a setting of one; repeatable"
    )
    parser.add_argument("--logs", type=Path, help="folder for what the peers print; standard error when absent")
    args = parser.parse_args()
    with ExitStack() as running:
        octavo = running.enter_context(start_octavo(args))
        peers = [running.enter_context(_start_peer(each, args.peer_option, args.logs)) for each in args.peer]
        systems: list[System] = [octavo, *peers]
        ours, *others = (Measurement(each, args.set, args.seed, args.requests) for each in systems)
        take_turns([ours, *others], args.rounds)
        for measurement in (ours, *others):
            print(json.dumps(measurement.summary()))
        comparison = {"set": args.set, "system": octavo.name, "date": time.strftime("%Y-%m-%d")}
        print(json.dumps(comparison | {"peers": [_against(ours, other) for other in others]}))


def _start_peer(argument: str, peer_options: Sequence[str], logs: Path | None) -> Peer:
    system, python = argument.split("=", 1)
    name, _, weights = system.partition(":")
    own = [option.removeprefix(f"{name}:") for option in peer_options if option.startswith(f"{name}:")]
    options = dict(option.split("=", 1) for option in own)
    return Peer(name, Path(python), weights, options, logs and logs / f"{name}-{weights or 'default'}.log")


def _against(ours: Measurement, other: Measurement) -> dict[str, Any]:
    pairs = list(zip(ours.rounds, other.rounds, strict=True))
    found: dict[str, Any] = {"system": other.system.name, "equal_first_tokens": equal_first_tokens(ours, other)}
    if ours.name == "ttft":
        for key in ("ttft_ms_p50", "cached_ttft_ms_p50"):
            found[f"{key.removesuffix('_ms_p50')}_ratio"] = _median_ratio([(b[key], a[key]) for a, b in pairs])
    else:
        found["ratio"] = _median_ratio([(a["tokens_per_s"], b["tokens_per_s"]) for a, b in pairs])
    return found


def _median_ratio(pairs: list[tuple[float, float]]) -> float:
    return round(statistics.median(a / b for a, b in pairs), 3)


if __name__ == "__main__":
    main()
