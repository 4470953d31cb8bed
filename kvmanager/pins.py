"""Prefixes that are kept resident: the paper's shared prefix that the provider defines in advance (section 4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvmanager.block import Block
from kvmanager.content import ScopeMap
from kvmanager.errors import InvalidRequest, PinRefused, RequestError
from kvmanager.replica import Replica
from kvmanager.request import Request
from kvmanager.rooms import can_finish
from kvmanager.spec import RequestSpec


@dataclass(slots=True, eq=False)
class Pin:
    """One kept prefix.

    Attributes:
        spec: the request that computes it.
        charges: blocks by owner, where it is placed.
        replica: where it is, or will be; None while no executor has it.
        blocks: the blocks that it holds; None until they are computed.
        expires: when it is let go of; None until it has been computed for the first time.
    """

    spec: RequestSpec
    charges: Counter[str] = field(default_factory=Counter)
    replica: Replica | None = None
    blocks: list[Block] | None = None
    expires: float | None = None

    @property
    def pin_id(self) -> str:
        assert self.spec.pin is not None
        return self.spec.pin.pin_id


@dataclass(frozen=True, slots=True)
class LostPin:
    """The handle of a request that computes a pin's prefix again. No gateway knows it."""

    pin_id: str


class Pins:
    """All pins, by id. Blocks are promised to a pin when it is accepted, so that it can't fail later."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin] = {}

    def __contains__(self, pin_id: str) -> bool:
        return pin_id in self._pins

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def get(self, pin_id: str) -> Pin | None:
        return self._pins.get(pin_id)

    def add(self, spec: RequestSpec) -> Pin:
        """Takes note of a pin that is still to be placed and computed."""
        pin = Pin(spec)
        self._pins[pin.pin_id] = pin
        return pin

    def order(self, spec: RequestSpec, replica: Replica | None, requests: list[Request]) -> None:
        """Takes a request's pin on, and promises it a replica's blocks if there is one. As of `place`.

        Raises:
            PinRefused: a request there would have too little. A new pin is not kept.
        """
        assert spec.pin is not None
        known = self.get(spec.pin.pin_id)
        pin = known or self.add(spec)
        if replica is None:
            return
        try:
            self.place(pin, replica, requests)
        except RequestError:
            if known is None:
                self.remove(pin)
            raise

    def place(self, pin: Pin, replica: Replica, requests: list[Request]) -> None:
        """Promises a replica's blocks to a pin.

        Args:
            requests: those that are on the replica; each must still be able to run to its end.

        Raises:
            PinRefused: one could not. Nothing has changed.
        """
        self._displace(pin)
        memory = replica.memory
        scopes = ScopeMap(pin.spec.spans, memory.block_size)
        num_blocks = len(pin.spec.prompt_token_ids) // memory.block_size
        pin.charges = scopes.owners(0, num_blocks)
        _promise(pin, replica, 1)
        for request in requests:
            if not can_finish(request, replica):
                _promise(pin, replica, -1)
                # Whose request that is, and how large, is not this tenant's to know.
                raise PinRefused(f"the pin's {num_blocks} blocks would leave too few to a request that is under way")
        pin.replica = replica

    def computed(self, request: Request, replica: Replica, now: float) -> RequestError | None:
        """The prompt of a pin's request is in its table: holds its full blocks, unless the pin was let go of."""
        assert request.spec.pin is not None
        pin = self.get(request.spec.pin.pin_id)
        if pin is None or pin.replica is not replica:
            return InvalidRequest("pin_id", "the pin was let go of")
        assert pin.spec.pin is not None
        pin.blocks = replica.memory.pin(request.sequences[0], pin.charges.total())
        if pin.expires is None:
            pin.expires = now + pin.spec.pin.ttl
        return None

    def lost(self, replica: Replica) -> list[Pin]:
        """An executor is gone. Returns the pins that have to be computed again elsewhere."""
        pins = [pin for pin in self if pin.replica is replica]
        for pin in pins:
            pin.replica = pin.blocks = None
        return pins

    def to_compute(self) -> list[RequestSpec]:
        """Requests that compute the prefixes again which no executor has any more."""
        return [
            replace(pin.spec, handle=LostPin(pin.pin_id), deadline=pin.expires, report_progress=False)
            for pin in self
            if pin.replica is None and pin.expires is not None
        ]

    def unplace(self, spec: RequestSpec) -> None:
        """Takes back what was promised to the pin that a request computes, if it computes one."""
        if spec.pin is not None and (pin := self.get(spec.pin.pin_id)) is not None:
            self._displace(pin)

    def _displace(self, pin: Pin) -> None:
        if pin.replica is not None:
            _promise(pin, pin.replica, -1)
            if pin.blocks is not None:
                pin.replica.memory.unpin(pin.blocks)
        pin.replica = pin.blocks = None

    def remove(self, pin: Pin) -> None:
        """Lets go of a pin's blocks, and of what was promised to it."""
        del self._pins[pin.pin_id]
        self._displace(pin)

    def due(self, now: float) -> list[Pin]:
        """Pins whose time is over."""
        return [pin for pin in self if pin.expires is not None and pin.expires <= now]

    def next_expiry(self) -> float | None:
        return min((pin.expires for pin in self if pin.expires is not None), default=None)


def _promise(pin: Pin, replica: Replica, sign: int) -> None:
    for owner, count in pin.charges.items():
        replica.memory.pool.accounts[owner].num_pinned += sign * count
