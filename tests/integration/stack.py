"""KV manager and executor in one process, joined as on the wire: every step and result is encoded and decoded."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from executor.loader import ExecutorSettings, load_executor
from kvmanager.capacity import Capacity
from kvmanager.manager import KVManager
from kvmanager.request import RequestSpec
from kvmanager.scheduler import Limits
from kvmanager.step import Outputs, StepBatch
from octavo.v1 import common_pb2, executor_pb2
from services.executor.codec import decode_batch, encode_result
from services.kvmanager.codec import decode_result, encode_batch


class Stack:
    """Both cores, two steps deep as in the services.

    Args:
        num_blocks: the KV manager uses so many of the executor's blocks; None: all.
    """

    def __init__(
        self, model: Path, block_size: int, num_blocks: int | None = None, max_batched_tokens: int = 64
    ) -> None:
        settings = ExecutorSettings(model=model, block_size=block_size, kv_memory="64MiB", dtype="float32")
        self.executor = load_executor(settings)
        info = self.executor.info
        self.manager = KVManager(Limits(max_batched_tokens, max_sequences=16, max_waiting_requests=16))
        self.manager.attach_executor(Capacity(num_blocks or info.num_blocks, block_size, info.max_model_len), now=0.0)
        self.output: dict[tuple[object, int], list[int]] = {}
        self.cached_tokens: dict[object, int] = {}
        self._under_way: deque[StepBatch] = deque()

    def submit(
        self, handle: object, prompt: list[int], max_tokens: int, n: int = 1, temperature: float = 0.0, seed: int = 0
    ) -> None:
        sampling = common_pb2.SamplingParams(temperature=temperature, seed=seed)
        spec = RequestSpec(handle, prompt, n=n, max_tokens=max_tokens, sampling=sampling)
        self.manager.submit(spec, now=0.0)

    def step(self) -> None:
        """Sends what there is to send, then takes one result."""
        while (batch := self.manager.schedule(now=0.0)) is not None:
            self._under_way.append(batch)
        if self._under_way:
            request = encode_batch(self._under_way.popleft(), epoch=1, traces=[])
            message = executor_pb2.ExecuteRequest.FromString(request.SerializeToString())
            result = encode_result(self.executor.step(decode_batch(message.batch)), duration_us=0)
            self._take(self.manager.apply(decode_result(result), now=0.0))
            self.manager.check_integrity()

    def run(self) -> None:
        """Until every request has ended."""
        while not self.manager.idle:
            self.step()
        state = self.manager.memory_state()
        assert state is not None
        assert state.referenced_blocks == 0

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Greedy output of prompts that are submitted together."""
        self.output.clear()
        for index, prompt in enumerate(prompts):
            self.submit(index, prompt, max_tokens)
        self.run()
        return [self.output[index, 0] for index in range(len(prompts))]

    def _take(self, outputs: Outputs) -> None:
        for update in outputs.updates:
            self.output.setdefault((update.handle, update.sample_index), []).extend(update.token_ids)
        for end in outputs.ends:
            assert end.usage is not None
            self.cached_tokens[end.handle] = end.usage.cached_tokens
