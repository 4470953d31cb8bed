"""Pins within one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.state.pins import StoredPin


class EmbeddedPinStore:
    """As `PinStore` says, by this process's clock. They end with the process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pins: dict[tuple[str, str], tuple[float, bytes]] = {}

    async def put(self, group: str, pin: StoredPin) -> None:
        self._pins[group, pin.pin_id] = (self._clock() + pin.seconds_left, pin.order)

    async def remove(self, group: str, pin_id: str) -> None:
        self._pins.pop((group, pin_id), None)

    async def list(self, group: str) -> Sequence[StoredPin]:
        now = self._clock()
        self._pins = {key: pin for key, pin in self._pins.items() if pin[0] > now}
        found = [(pin_id, *pin) for (owner, pin_id), pin in self._pins.items() if owner == group]
        return [StoredPin(pin_id, end - now, order) for pin_id, end, order in sorted(found)]
