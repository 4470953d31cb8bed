"""All that is timed, each with its time."""

from __future__ import annotations

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Parts
from benchmarks.gpu.time_copies import copy_bandwidth, host_bandwidth
from benchmarks.gpu.time_decode import time_decode
from benchmarks.gpu.time_prefill import time_prefill
from benchmarks.gpu.time_prefix import time_prefix
from benchmarks.gpu.time_step import time_step
from benchmarks.gpu.time_swaps import time_swaps
from executor.attention import BACKENDS

_DECODE_SECONDS = 40.0
_STEP_SECONDS = 20.0
_PREFILL_SECONDS = 15.0
_SWAPS_SECONDS = 15.0
_PREFIX_SECONDS = 10.0


def run_times(machine: Machine, parts: Parts) -> None:
    """Prints a line for each case, and collects what they come to."""
    bandwidth = copy_bandwidth(machine)
    backend = BACKENDS["triton"]
    parts.run("copy", lambda: {"device_gb_s": round(bandwidth / 1e9, 1), **host_bandwidth(machine)})
    parts.run("decode", lambda: time_decode(machine, backend, bandwidth, _DECODE_SECONDS))
    parts.run("step", lambda: time_step(machine, bandwidth, _STEP_SECONDS))
    parts.run("prefill", lambda: time_prefill(machine, backend, _PREFILL_SECONDS))
    parts.run("swaps", lambda: time_swaps(machine, _SWAPS_SECONDS))
    parts.run("prefix", lambda: time_prefix(machine, backend, _PREFIX_SECONDS))
