"""What is loaded: any server that streams answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.cli.bench.workload import Request

Arrived = Callable[[int], None]
"""Told of each response as it comes: how many tokens it brings."""


class RequestFailed(Exception):
    """A request got no whole answer.

    Attributes:
        kind: The same for all that fail alike.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TargetUnusable(Exception):
    """There is no server, or it refuses everything."""


@dataclass(frozen=True)
class Usage:
    """What the server counted. None: it does not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Model:
    """The model that answers.

    Attributes:
        vocab_size: None where the server does not say it.
    """

    name: str
    vocab_size: int | None = None


class Target(Protocol):
    """One server."""

    async def model(self) -> Model:
        """Raises TargetUnusable."""

    async def send(self, request: Request, arrived: Arrived) -> Usage:
        """Sends a request and reads its answer to the end.

        Raises:
            RequestFailed: There was none, or only a part.
        """

    async def close(self) -> None: ...
