"""What an executor can hold, and whether a request can ever fit into it."""

from __future__ import annotations

from dataclasses import dataclass

from kvmanager.errors import InvalidRequest
from kvmanager.spec import RequestSpec


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor has memory for.

    Attributes:
        num_blocks: blocks in its device pool.
        block_size: tokens in a block.
        max_model_len: tokens of the longest sequence the model takes.
        num_host_blocks: blocks in its host pool.
        max_batched_tokens, max_sequences: most tokens of a step and rows in it; 0: it states no limit.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    num_host_blocks: int = 0
    max_batched_tokens: int = 0
    max_sequences: int = 0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def worst_case(self, spec: RequestSpec, max_length: int) -> int:
        """Blocks that the request needs at most, when nothing but its prompt's full blocks is shared."""
        shared = len(spec.prompt_token_ids) // self.block_size
        # The last token of a sequence is never fed back, so it needs no slot.
        return shared + spec.num_sequences * (self.blocks_for(max_length - 1) - shared)

    def resolve_max_length(self, spec: RequestSpec, num_blocks: int | None = None) -> int:
        """Returns how many tokens, prompt and output, each of the request's sequences may reach.

        A request that passes can always run to its end, if need be alone: that is what makes preemption by
        recomputation end.

        Args:
            num_blocks: blocks that it can count on: less what is reserved for others, and what is pinned. None: all.

        Raises:
            InvalidRequest: the prompt, or the output it asks for, can never fit.
        """
        num_blocks = self.num_blocks if num_blocks is None else num_blocks
        prompt_length = len(spec.prompt_token_ids)
        if spec.max_tokens < 0:
            raise InvalidRequest("sampling.max_tokens", f"max_tokens is {spec.max_tokens}; it must not be negative")
        if prompt_length == 0:
            raise InvalidRequest("prompt", "prompt is empty")
        if prompt_length >= self.max_model_len:
            raise InvalidRequest(
                "prompt",
                f"prompt has {prompt_length} tokens; the model takes {self.max_model_len}, "
                "at least one of them for the answer",
            )
        longest = min(self.max_model_len, self._longest_that_fits(prompt_length, spec.num_sequences, num_blocks))
        if longest <= prompt_length:
            field = "sampling.n" if spec.num_sequences > 1 else "prompt"
            raise InvalidRequest(
                field,
                f"{spec.num_sequences} sequence(s) with a prompt of {prompt_length} tokens need more than the "
                f"{num_blocks} blocks of {self.block_size} tokens that {spec.tenant} can have",
            )
        if not spec.max_tokens:
            return longest
        length = prompt_length + spec.max_tokens
        if length > longest:
            raise InvalidRequest(
                "sampling.max_tokens",
                f"max_tokens is {spec.max_tokens}; after a prompt of {prompt_length} tokens at most "
                f"{longest - prompt_length} fit for each of {spec.num_sequences} sequence(s)",
            )
        return length

    def _longest_that_fits(self, prompt_length: int, num_sequences: int, num_blocks: int) -> int:
        # The sequences share the prompt's full blocks; the rest each has for itself.
        shared = prompt_length // self.block_size
        own = (num_blocks - shared) // num_sequences
        return (shared + own) * self.block_size + 1 if own > 0 else 0
