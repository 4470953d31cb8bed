"""Ranks that speak through torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch names it nowhere

from executor.step import StepBatch
from executor.tensor_parallel.ranks import Ranks
from executor.weights.shard import share

# Ranks need not read their parts of a model equally fast. One that dies is for whoever started it to notice.
_PATIENCE = timedelta(minutes=30)
_HERE = "127.0.0.1"


class Meeting:
    """Where the ranks find one another, in the process of the first one; only this machine reaches it.

    Args:
        size: how many they are.

    Attributes:
        port: what the others need to know of it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        listener = socket.create_server((_HERE, 0))
        self.port: int = listener.getsockname()[1]
        self._store = TCPStore(
            _HERE,
            self.port,
            size,
            is_master=True,
            timeout=_PATIENCE,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def join(self, device: torch.device, tell: Callable[[bytes], None]) -> RankGroup:
        """Joins as the first rank; returns when all have joined.

        Args:
            tell: takes each step to the others, who read it with `read_step`.
        """
        return RankGroup(self._store, 0, self._size, device, tell)


def join(port: int, index: int, size: int, device: torch.device) -> RankGroup:
    """Joins as one of the other ranks; returns when all have joined."""
    store = TCPStore(_HERE, port, size, is_master=False, timeout=_PATIENCE)
    return RankGroup(store, index, size, device, tell=None)


def read_step(data: bytes) -> StepBatch:
    """A step as the first rank tells it. The bytes must be from a process that is trusted."""
    batch: StepBatch = pickle.loads(data)
    return batch


class RankGroup(Ranks):
    """Joined ranks. A process can be in one group at a time: `leave` it before another is joined.

    Values go between devices, numbers between hosts.
    """

    def __init__(
        self, store: TCPStore, index: int, size: int, device: torch.device, tell: Callable[[bytes], None] | None
    ) -> None:
        self.size = size
        self.index = index
        self._tell = tell
        if device.type == "cuda":
            # Of this thread, which is the one that runs the steps; kernels in Triton are launched there.
            torch.cuda.set_device(device)
        # All are on this machine; without this, gloo would take the network that the host's name belongs to.
        os.environ["GLOO_SOCKET_IFNAME"] = _loopback_interface()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=index,
            world_size=size,
            timeout=_PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )

    def leave(self) -> None:
        """The others must do so too."""
        dist.destroy_process_group()

    def announce(self, batch: StepBatch) -> None:
        if self._tell is not None:
            # What blocks hold is the first rank's to keep.
            self._tell(pickle.dumps(replace(batch, removed_blocks=[], stored_blocks=[])))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(values)
        return values

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, vocabulary: range) -> torch.Tensor:
        rows = token_ids - vocabulary.start
        others = (rows < 0) | (rows >= len(vocabulary))
        return self.sum(F.embedding(rows.masked_fill(others, 0), table).masked_fill(others[:, None], 0))

    def gather_logits(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        if not len(logits):  # only parts of prompts were computed
            return logits.new_empty(0, vocab_size)
        widths = [len(share(vocab_size, rank, self.size)) for rank in range(self.size)]
        # All parts must be of one size.
        mine = F.pad(logits, (0, max(widths) - logits.shape[1])).contiguous()
        if not self.is_first:
            dist.gather(mine)
            return logits
        parts = [torch.empty_like(mine) for _ in widths]
        dist.gather(mine, parts)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def first_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        dist.broadcast(tokens, src=0)
        return tokens

    def first_number(self, number: float) -> float:
        value = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(value, src=0)
        return float(value)

    def smallest(self, number: int) -> int:
        value = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(value, op=dist.ReduceOp.MIN)
        return int(value)


def _loopback_interface() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
