"""An executor's other ranks: child processes of the first one's, which is the one that serves.

The first rank tells the others what to do through their standard input, so that they know at once when it is gone. It
hears of their end from the system.
"""

from __future__ import annotations

import atexit
import logging
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import torch

from executor.tensor_parallel.group import Meeting, RankGroup
from services.child_process import environment_of
from services.config import ExecutorConfig
from services.executor.pipe import send

log = logging.getLogger(__name__)

_SIGNALS = {each.value: each.name for each in signal.Signals}
# A rank has nothing to finish when its input ends.
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class RankDeath:
    """A rank that has ended by itself.

    Attributes:
        exit_code: minus the signal's number where one killed it.
        reason: its last words, or what killed it, in one line.
    """

    rank: int
    exit_code: int
    reason: str


@dataclass(frozen=True)
class RankTask:
    """What a rank is told first."""

    config: ExecutorConfig
    rank: int
    port: int


class RankProcesses:
    """The processes of all ranks but the first; they run as soon as this is made, and no longer than this process.

    Args:
        config: the executor's.
        on_death: called, on a thread, with each rank that ends before it is told to. The others wait for it in vain.
    """

    def __init__(self, config: ExecutorConfig, on_death: Callable[[RankDeath], None]) -> None:
        self._on_death = on_death
        self._stopping = threading.Lock()
        self._stopped = False
        self._group: RankGroup | None = None
        self._meeting = Meeting(config.tensor_parallel_size)
        self._processes = [self._start(config, rank) for rank in range(1, config.tensor_parallel_size)]
        atexit.register(self.stop)

    def join(self, device: torch.device) -> RankGroup:
        """Returns when all ranks have joined.

        Args:
            device: where the first one computes.
        """
        self._group = self._meeting.join(device, self._tell)
        return self._group

    def stop(self) -> None:
        """Ends them, and returns when they have ended. No step may be under way."""
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
        for process in self._processes:
            with suppress(BrokenPipeError):  # it has ended before
                _input_of(process).close()
        for process in self._processes:
            try:
                process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._group is not None:
            self._group.leave()

    def _start(self, config: ExecutorConfig, rank: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.executor.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_of("executor"),
        )
        log.info("rank started", extra={"rank": rank, "pid": process.pid})
        threading.Thread(target=self._watch, args=(rank, process), name=f"rank-{rank}", daemon=True).start()
        send(_input_of(process), pickle.dumps(RankTask(config, rank, self._meeting.port)))
        return process

    def _tell(self, data: bytes) -> None:
        for process in self._processes:
            send(_input_of(process), data)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        words = process.stdout.read().decode("utf-8", "replace")
        code = process.wait()
        reason = f"killed by {_SIGNALS.get(-code, -code)}" if code < 0 else words or f"exit code {code}"
        # Whoever stops them waits here while somebody is told of a death.
        with self._stopping:
            if not self._stopped:
                self._on_death(RankDeath(rank, code, " ".join(reason.split())))


def _input_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin
