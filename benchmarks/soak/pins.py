"""Prompts that are pinned while requests run, and let go of again."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc

from benchmarks.soak.workload import Kind, Planned
from octavo.client import AsyncClient, OctavoError
from octavo.v1 import inference_pb2

Pins = Mapping[str, inference_pb2.Pin]

# Together few enough blocks that every request of the workload still fits.
MAX_PINS = 2
SHORTEST_PIN, LONGEST_PIN = 40, 80
_LONG_SECONDS = 3600.0
_SHORT_SECONDS = 2.0
# A pin is computed between the requests that run, and again after its executor was lost.
_PATIENCE = 120.0


@dataclass
class PinLog:
    """What pins did.

    Attributes:
        granted: Pins that were computed.
        refused: Pins that would have left too little to requests that were there.
        expired: Pins that were let go of because their time was over.
        survived: Pins that were there after an executor was killed.
        problems: What was wrong, each in one line.
    """

    granted: int = 0
    refused: int = 0
    expired: int = 0
    survived: int = 0
    problems: list[str] = field(default_factory=list)


class Pinner:
    """A client that pins beginnings of prompts. Belongs to the event loop that it was made in.

    Args:
        address: Of the gateway.
        seed: Decides what is pinned.
        block_size: Tokens in a block.
        planned: The workload, which the pins serve.
    """

    def __init__(self, address: str, seed: int, block_size: int, planned: Sequence[Planned]) -> None:
        self._rng = Random(f"pins {seed}")
        self._block_size = block_size
        self._prompts = [
            list(each.request.prompt.tokens.token_ids)
            for each in planned
            if each.kind is not Kind.INVALID and len(each.request.prompt.tokens.token_ids) > LONGEST_PIN
        ]
        self._client = AsyncClient(address, retry=None)
        self._held: dict[str, inference_pb2.Pin] = {}
        self.log = PinLog()

    async def pin(self, ttl: float = _LONG_SECONDS) -> inference_pb2.Pin | None:
        """Pins the beginning of one of the workload's prompts; None where that is refused, or there is none."""
        if not self._prompts:
            return None
        prompt = self._rng.choice(self._prompts)[: self._rng.randint(SHORTEST_PIN, LONGEST_PIN)]
        scope = self._rng.choice(("app", "tenant", None))
        length = len(prompt)
        try:
            pin = await self._client.pin(prompt, ttl, cache_scope=scope, timeout=_PATIENCE)
        except OctavoError as error:
            if error.status is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.log.refused += 1
            else:
                self.log.problems.append(f"pin failed: {error}")
            return None
        self.log.granted += 1
        blocks = length // self._block_size
        if (pin.pinned_blocks, pin.pinned_tokens) != (blocks, blocks * self._block_size):
            self.log.problems.append(f"{pin.pinned_blocks} blocks of {length} tokens are pinned")
        if not pin.resident or not 0 < pin.remaining.ToTimedelta().total_seconds() <= ttl:
            self.log.problems.append(f"a new pin of {ttl:.0f} s is {pin}")
        return pin

    async def hold(self) -> None:
        """Pins a prompt until `let_go`, unless enough are held."""
        if len(self._held) < MAX_PINS and (pin := await self.pin()) is not None:
            self._held[pin.pin_id] = pin
        await self._compare("after pinning")

    async def let_expire(self) -> None:
        """Pins a prompt for a moment, and looks that it goes."""
        if len(self._held) < MAX_PINS and (pin := await self.pin(_SHORT_SECONDS)) is not None:
            if await self._listed_until(lambda pins: pin.pin_id not in pins):
                self.log.expired += 1
            else:
                self.log.problems.append("a pin outlives its time")

    async def survive(self) -> None:
        """Looks that what is held gets resident again, wherever it was."""
        resident = await self._listed_until(
            lambda pins: all(pin_id in pins and pins[pin_id].resident for pin_id in self._held)
        )
        if resident:
            self.log.survived += len(self._held)
        else:
            self.log.problems.append("a pin did not come back after its executor was lost")

    async def let_go(self) -> None:
        """Unpins all, one of them twice."""
        for pin_id in list(self._held):
            await self._client.unpin(pin_id, timeout=_PATIENCE)
            del self._held[pin_id]
            try:
                await self._client.unpin(pin_id, timeout=_PATIENCE)
                self.log.problems.append("a pin was let go of twice")
            except OctavoError as error:
                if error.status is not grpc.StatusCode.NOT_FOUND:
                    self.log.problems.append(f"unpinning what is not pinned: {error}")
        await self._compare("after unpinning")

    async def misuse(self) -> None:
        """Asks for pins that are refused."""
        text = "A text of more tokens than a block has. " * 4
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("ttl", {"prompt": text, "ttl": 0.5}),
            ("cache_scope", {"prompt": text, "ttl": 60.0, "cache_scope": "request"}),
            ("prompt.tokens", {"prompt": [1000] * (self._block_size - 1), "ttl": 60.0}),
        ]
        for name, arguments in wrong:
            try:
                await self._client.pin(**arguments, timeout=_PATIENCE)
                self.log.problems.append(f"pinned in spite of {name}")
            except OctavoError as error:
                if (error.status, error.field) != (grpc.StatusCode.INVALID_ARGUMENT, name):
                    self.log.problems.append(f"expected INVALID_ARGUMENT for {name}, got {error}")

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()

    async def _compare(self, when: str) -> None:
        listed = {pin.pin_id for pin in await self._client.pins(timeout=_PATIENCE)}
        if listed != set(self._held):
            self.log.problems.append(f"{len(listed)} pins are listed {when}, {len(self._held)} are held")

    async def _listed_until(self, holds: Callable[[Pins], bool]) -> bool:
        """Whether this becomes true of the pins that are listed."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if holds({pin.pin_id: pin for pin in await self._client.pins(timeout=_PATIENCE)}):
                return True
            await asyncio.sleep(0.1)
        return False
