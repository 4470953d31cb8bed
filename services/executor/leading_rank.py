"""The first of several ranks: it starts the others, serves for all of them, and ends when one of them does."""

from __future__ import annotations

import logging
import os
import sys
import time

from executor.executor import Executor
from services.config import ExecutorConfig
from services.executor.loading import check, load
from services.executor.ranks import RankDeath, RankProcesses
from services.process import BROKEN_EXIT_CODE, UNUSABLE_EXIT_CODE

log = logging.getLogger(__name__)

# A step that breaks may have broken because another rank is gone. Its end is the one to tell of, so it has this long.
_FIRST_WORD_SECONDS = 1.0


class LeadingRank:
    """Loads an executor with all its ranks, and sees to it that none is left waiting for one that is gone.

    A rank may wait in a call that nothing ends but the process: so the end of one ends this process at once.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        self._config = config
        self._processes: RankProcesses | None = None
        self._loaded = False

    def load(self) -> Executor:
        """Returns when all ranks have their part of the model.

        Raises:
            ConfigError: the model can't be loaded so.
        """
        device = check(self._config, rank=0)
        self._processes = RankProcesses(self._config, self._end_with)
        try:
            executor = load(self._config, self._processes.join(device))
        except Exception:
            self._processes.stop()
            raise
        self._loaded = True
        return executor

    def stop(self) -> None:
        """Ends the other ranks. No step may be under way."""
        if self._processes is not None:
            self._processes.stop()

    def break_off(self, error: Exception) -> None:
        """A step has failed in this rank; the others may be anywhere in it."""
        extra = {"reason": str(error)}
        log.critical("a step failed in rank 0, and the executor ends with it", extra=extra, exc_info=error)
        time.sleep(_FIRST_WORD_SECONDS)
        os._exit(BROKEN_EXIT_CODE)

    def _end_with(self, death: RankDeath) -> None:
        if self._loaded:
            extra = {"rank": death.rank, "reason": death.reason}
            log.critical("a rank has died, and the executor ends with it", extra=extra)
        else:
            print(f"octavo: rank {death.rank}: {death.reason}", file=sys.stderr, flush=True)
        os._exit(UNUSABLE_EXIT_CODE if death.exit_code == UNUSABLE_EXIT_CODE else BROKEN_EXIT_CODE)
