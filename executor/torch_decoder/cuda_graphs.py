"""Work that a GPU does again and again, without being told each time of every kernel in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class GraphCapture(Protocol):
    """Records what a function has a device do."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Calls the function to see what it does.

        Args:
            function: reads and writes tensors that stay where they are, always in the same way, and never reads a
                number of theirs on the host.

        Returns:
            Has the device do the same again, with what the tensors hold by then, in the order of its current stream.

        Raises:
            RuntimeError: there is no memory for it (torch.OutOfMemoryError), or the function can't be recorded.
        """


class CudaGraphs:
    """CUDA graphs of one device, which all take what memory they need from one pool.

    So a graph may overwrite what another one has left in it: results belong in tensors from elsewhere. Large graphs
    first: smaller ones then find their memory in the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """As `GraphCapture` says. The function runs once before: kernels get compiled, libraries get their memory."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        # This context outside leaves the stream even where the other one fails to.
        with torch.cuda.stream(self._stream):
            function()
            # Of other threads, those of NCCL ask for events, which the mode "global" would take for a mistake.
            try:
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    function()
            except RuntimeError as error:
                # The end of a recording that has failed raises an error of its own.
                if isinstance(error.__context__, torch.OutOfMemoryError):
                    raise error.__context__ from None
                raise
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return graph.replay
