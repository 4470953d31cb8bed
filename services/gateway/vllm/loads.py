"""How busy the stack is, as the protocol tells it: as one engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import version

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from octavo.v1 import monitoring_pb2

RATE_SECONDS = 1.0
"""Over which tokens are counted at least."""


class Loads:
    """Turns the stack's status into the protocol's loads, and remembers the last one for the rate of tokens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._tokens_per_second = 0.0

    def response(self, status: monitoring_pb2.Status, block_size: int, waiting_tokens: int) -> vllm.GetLoadsResponse:
        """What the protocol asks for.

        Args:
            status: Of now.
            block_size: Tokens in a block.
            waiting_tokens: Of prompts of which no token has come yet, as far as this gateway knows.
        """
        num_blocks = sum(executor.device.num_blocks for executor in status.executors)
        used_blocks = sum(executor.device.referenced_blocks for executor in status.executors)
        waiting = status.waiting_requests + status.swapped_requests
        usage = used_blocks / num_blocks if num_blocks else 0.0
        counters = status.counters
        load = vllm.SchedulerLoad(
            num_running_reqs=status.running_requests,
            num_waiting_reqs=waiting,
            num_total_reqs=status.running_requests + waiting,
            num_used_tokens=used_blocks * block_size,
            max_total_num_tokens=num_blocks * block_size,
            token_usage=usage,
            utilization=usage,
            gen_throughput=self._rate(counters.generated_tokens),
            cache_hit_rate=counters.cached_prompt_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0,
            num_waiting_uncached_tokens=waiting_tokens,
        )
        now = datetime.now(timezone.utc).isoformat()
        return vllm.GetLoadsResponse(timestamp=now, version=version("octavo"), dp_rank_count=1, loads=[load])

    def _rate(self, generated_tokens: int) -> float:
        """Tokens per second since the last time that somebody asked."""
        now = self._clock()
        if self._last is None or generated_tokens < self._last[1]:  # counters begin anew with the KV manager
            self._last = now, generated_tokens
        elif now - self._last[0] >= RATE_SECONDS:
            self._tokens_per_second = (generated_tokens - self._last[1]) / (now - self._last[0])
            self._last = now, generated_tokens
        return self._tokens_per_second
