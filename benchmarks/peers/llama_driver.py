"""llama.cpp with a loop like that of its own server: slots, decodes and prompts in one batch, prefixes kept in slots.

Directly on its C interface: neither HTTP nor the server's sampler (a copy of all logits for each token) slow it down.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.peers.driver import LONGEST, Request, drive

_THREADS = os.cpu_count() or 1
_DEFAULTS = {
    "n_seq_max": 64,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_threads": _THREADS,
    "n_threads_batch": _THREADS,
    # Each slot has keys and values of its own: attention does not look through the others'.
    "kv_unified": 0,
}


@dataclass
class _Slot:
    """A sequence of the context.

    Attributes:
        tokens: whose keys and values are there, in order.
        coming: tokens that are to be computed next.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    request: Request | None = None


class LlamaEngine:
    """Settings are parameters of llama.cpp's context."""

    def __init__(self, model: str, settings: Mapping[str, str]) -> None:
        values = _DEFAULTS | {name: int(value) for name, value in settings.items()}
        values.setdefault("n_ctx", values["n_seq_max"] * LONGEST)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(model), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        for name, value in values.items():
            setattr(parameters, name, type(getattr(parameters, name))(value))
        self._context: Any = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError("llama.cpp could not make a context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch_size = values["n_batch"]
        self._batch: Any = llama_cpp.llama_batch_init(self._batch_size, 0, 1)
        # The one that was used longest ago comes first.
        self._slots = [_Slot(index) for index in range(values["n_seq_max"])]
        self._details = {"version": llama_cpp.__version__} | values

    def details(self) -> Mapping[str, Any]:
        return self._details

    def run(self, requests: Sequence[Request]) -> None:
        waiting = list(requests)
        running: list[_Slot] = []
        while waiting or running:
            while waiting and len(running) < len(self._slots):
                running.append(self._assign(waiting.pop(0)))
            self._step(running)
            running = [slot for slot in running if slot.request is not None]

    def _assign(self, request: Request) -> _Slot:
        """Gives a request the free slot that has most of its prompt."""
        free = [slot for slot in self._slots if slot.request is None]
        slot = max(free, key=lambda each: _common(each.tokens, request.prompt))
        # The last token is computed anew: its logits are wanted.
        kept = min(_common(slot.tokens, request.prompt), len(request.prompt) - 1)
        llama_cpp.llama_memory_seq_rm(self._memory, slot.index, kept, -1)
        slot.tokens = request.prompt[:kept]
        slot.coming = request.prompt[kept:]
        slot.request = request
        self._slots.remove(slot)
        self._slots.append(slot)
        return slot

    def _step(self, running: Sequence[_Slot]) -> None:
        """One batch: who decodes first, then as much of prompts as fits."""
        batch = self._batch
        batch.n_tokens = 0
        sampled: list[tuple[_Slot, int]] = []
        for slot in sorted(running, key=lambda each: len(each.coming) > 1):
            taken = slot.coming[: self._batch_size - batch.n_tokens]
            slot.coming = slot.coming[len(taken) :]
            for token in taken:
                self._add(slot, token)
            if taken and not slot.coming:
                batch.logits[batch.n_tokens - 1] = 1
                sampled.append((slot, batch.n_tokens - 1))
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama.cpp could not compute a batch")
        for slot, row in sampled:
            self._take(slot, self._best_token(row))

    def _add(self, slot: _Slot, token: int) -> None:
        batch, row = self._batch, self._batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = len(slot.tokens)
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = slot.index
        batch.logits[row] = 0
        batch.n_tokens += 1
        slot.tokens.append(token)

    def _best_token(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self._vocab_size,))))

    def _take(self, slot: _Slot, token: int) -> None:
        assert slot.request is not None
        slot.request.got([token])
        if len(slot.request.token_ids) == slot.request.output_tokens:
            slot.request = None
        else:
            slot.coming = [token]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    return next((index for index in range(length) if one[index] != other[index]), length)


if __name__ == "__main__":
    drive(LlamaEngine)
