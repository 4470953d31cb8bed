"""What the requests of one tenant have had."""

from __future__ import annotations

from dataclasses import dataclass

from kvmanager.request import Request


@dataclass(slots=True)
class TenantCounters:
    """Since start, as of `kvmanager.counters.Counters`. All of them only grow."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    waiting_seconds: float = 0.0
    running_seconds: float = 0.0
    preempted_seconds: float = 0.0

    def add(self, request: Request, completion_tokens: int) -> None:
        """Counts a request, up to its last change of state."""
        if request.num_cached_tokens is not None:
            self.prompt_tokens += len(request.spec.prompt_token_ids)
            self.cached_prompt_tokens += request.num_cached_tokens
        self.generated_tokens += completion_tokens
        times = request.times
        self.preemptions += times.preemptions
        self.waiting_seconds += times.waiting
        self.running_seconds += times.running
        self.preempted_seconds += times.preempted

    def add_unfinished(self, request: Request) -> None:
        """Likewise, one that goes on. Tokens of which only the best are returned count when it ends."""
        self.add(request, sum(each.num_output for each in request.sequences) if request.streamed else 0)
