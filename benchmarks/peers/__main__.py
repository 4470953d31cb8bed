"""How fast another system is with the requests that `benchmarks.throughput` sends, with the same figures.

    python -m benchmarks.peers --peer openvino --python PATH/TO/ITS/VENV/bin/python --set alpaca

`docs/performance.md` says how each is installed. The system runs in its own process without a server in front, which
favours it: what it would spend on HTTP or gRPC does not count.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.measuring import Measurement, take_turns
from benchmarks.peers.peer import PEERS, WEIGHTS, Peer
from benchmarks.throughput import add_set_arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_set_arguments(parser)
    parser.add_argument("--peer", choices=PEERS, required=True, help="which system")
    parser.add_argument("--python", type=Path, required=True, help="of the virtual environment that it is installed in")
    parser.add_argument("--weights", choices=WEIGHTS, default="", help="q4 for llama and bf16 for others when absent")
    parser.add_argument("--log", type=Path, help="file for what the system prints")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="a setting of the system; repeatable"
    )
    args = parser.parse_args()
    options = dict(option.split("=", 1) for option in args.option)
    with Peer(args.peer, args.python, args.weights, options, args.log) as peer:
        measurement = Measurement(peer, args.set, args.seed, args.requests)
        take_turns([measurement], args.rounds)
        print(json.dumps(measurement.summary()))


if __name__ == "__main__":
    main()
