"""Compiles, checks and times what runs on a GPU.

    python -m benchmarks.gpu --compile-only
    python -m benchmarks.gpu --check --time

`--compile-only` needs no GPU: every form of every kernel that the executor can pick is compiled for sm_80, sm_90 and
sm_100, and what must not be launched (spilled registers, too much shared memory) ends it with status 1.

Prints JSON lines, the last one the summary; on standard error, what is under way.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.gpu.compile_all import compile_all
from benchmarks.gpu.compile_pool import all_tasks
from benchmarks.gpu.lines import emit


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile-only", action="store_true", help="compile ahead of time; no GPU is needed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that compile at once")
    options = parser.parse_args()
    if options.compile_only:
        summary = compile_all(all_tasks(), options.processes)
        emit({"summary": summary})
        return 1 if summary["faults"] else 0
    parser.error("choose --compile-only, --check or --time")


if __name__ == "__main__":
    sys.exit(main())
