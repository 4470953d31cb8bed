"""What one decode step costs the KV manager: plan, encode, decode, apply.

    python -m benchmarks.scheduler_step --running 256

Prints a JSON line for each pool size, and last the summary: `step_ms_p50` with the smaller pool, the parts it consists
of, `step_cpu_ms_p50` (processor time, which other work on the machine disturbs less), and `large_pool_ratio`: the
processor time of the same step with a million blocks, over it. The executor is not part of it: results are made
beforehand, as the bytes that an executor would send.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass

from kvmanager.capacity import Capacity
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.spec import RequestSpec
from octavo.v1 import common_pb2, executor_pb2
from services.kvmanager.codec import decode_result, encode_batch
from services.rpc.columns import pack_int32

BLOCK_SIZE = 16
EXECUTOR = "executor"
MAX_MODEL_LEN = 4096
VOCAB_SIZE = 32_000
SMALL_POOL, LARGE_POOL = 10_000, 1_000_000
WARM_UP_STEPS = 50
STEPS_A_TURN = 20


@dataclass(slots=True)
class StepTimes:
    """Seconds: of each part by the wall clock, and of the whole in processor time."""

    plan: float
    encode: float
    decode: float
    apply: float
    cpu: float

    @property
    def total(self) -> float:
        return self.plan + self.encode + self.decode + self.apply


class DecodeLoop:
    """A KV manager whose sequences all decode, two steps under way."""

    def __init__(self, num_running: int, num_blocks: int, seed: int) -> None:
        rng = random.Random(seed)
        self._manager = KVManager(Limits(num_running * 80, num_running, num_running))
        self._manager.attach_executor(EXECUTOR, Capacity(num_blocks, BLOCK_SIZE, MAX_MODEL_LEN), now=0.0)
        self._tokens = pack_int32([rng.randrange(VOCAB_SIZE) for _ in range(num_running)])
        self._under_way: deque[bytes] = deque()
        for index in range(num_running):
            # Lengths are spread, so that each step has its share of sequences that fill a block.
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(16, 80))]
            longest = num_blocks * BLOCK_SIZE // num_running - len(prompt) - BLOCK_SIZE
            spec = RequestSpec(
                index,
                prompt,
                max_tokens=min(longest, MAX_MODEL_LEN - len(prompt)),
                stop_token_ids=frozenset([VOCAB_SIZE]),
                sampling=common_pb2.SamplingParams(temperature=0.0),
            )
            self._manager.submit(spec, now=0.0)
        self._send(self._plan())
        self._send(self._plan())

    def step(self) -> StepTimes:
        """Takes the result of the oldest step in, and sends a new one."""
        message = self._under_way.popleft()
        cpu_start, start = time.thread_time(), time.perf_counter()
        result = decode_result(executor_pb2.ExecuteResponse.FromString(message).result)
        decoded = time.perf_counter()
        self._manager.apply(EXECUTOR, result, now=0.0)
        applied = time.perf_counter()
        batch = self._manager.schedule(EXECUTOR, now=0.0)
        planned = time.perf_counter()
        assert batch is not None
        sent = encode_batch(batch, 1, ()).SerializeToString()
        encoded, cpu = time.perf_counter(), time.thread_time() - cpu_start
        self._send(sent)
        return StepTimes(planned - applied, encoded - planned, decoded - start, applied - decoded, cpu)

    def _plan(self) -> bytes:
        batch = self._manager.schedule(EXECUTOR, now=0.0)
        assert batch is not None
        return encode_batch(batch, 1, ()).SerializeToString()

    def _send(self, message: bytes) -> None:
        """The executor gives each row a token."""
        batch = executor_pb2.ExecuteRequest.FromString(message).batch
        tokens = self._tokens[: len(batch.row_sequence_ids) // 2]
        result = executor_pb2.StepResult(
            epoch=1, step=batch.step, sequence_ids=batch.row_sequence_ids, token_ids=tokens, duration_us=5000
        )
        self._under_way.append(executor_pb2.ExecuteResponse(result=result).SerializeToString())


def measure(loops: dict[int, DecodeLoop], num_steps: int) -> dict[int, dict[str, float]]:
    """Runs the loops in turns. Returns medians in milliseconds, by number of blocks.

    A turn is a few steps: a KV manager finds its own data in the processor's cache, not another one's.
    """
    steps: dict[int, list[StepTimes]] = {num_blocks: [] for num_blocks in loops}
    for _ in range(-(-num_steps // STEPS_A_TURN)):
        for num_blocks, loop in loops.items():
            steps[num_blocks] += [loop.step() for _ in range(STEPS_A_TURN)]
    return {num_blocks: _medians(times) for num_blocks, times in steps.items()}


def _medians(times: list[StepTimes]) -> dict[str, float]:
    columns = {
        "step_ms_p50": [each.total for each in times],
        "plan_ms_p50": [each.plan for each in times],
        "encode_ms_p50": [each.encode for each in times],
        "decode_ms_p50": [each.decode for each in times],
        "apply_ms_p50": [each.apply for each in times],
        "step_cpu_ms_p50": [each.cpu for each in times],
    }
    return {name: round(1000 * statistics.median(column), 4) for name, column in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256, help="sequences that decode")
    parser.add_argument("--steps", type=int, default=400, help="steps to measure")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # Room for every sequence to decode until the end of the measurement.
    needed = args.running * (-(-(80 + WARM_UP_STEPS + args.steps + STEPS_A_TURN) // BLOCK_SIZE) + 2)
    small = max(SMALL_POOL, needed)
    loops = {num_blocks: DecodeLoop(args.running, num_blocks, args.seed) for num_blocks in (small, LARGE_POOL)}
    for loop in loops.values():
        for _ in range(WARM_UP_STEPS):
            loop.step()
    gc.collect()
    gc.freeze()  # a million blocks that live on are not looked through again and again, as in the service
    medians = measure(loops, args.steps)
    for num_blocks, median in medians.items():
        print(json.dumps({"running": args.running, "num_blocks": num_blocks, **median}))
    ratio = medians[LARGE_POOL]["step_cpu_ms_p50"] / medians[small]["step_cpu_ms_p50"]
    print(json.dumps({"running": args.running, **medians[small], "large_pool_ratio": round(ratio, 3)}))


if __name__ == "__main__":
    main()
