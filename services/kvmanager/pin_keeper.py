"""Pins outlive a KV manager: they are noted in the state store, and whoever leads next has them computed again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from kvmanager.pins import Pin
from kvmanager.spec import RequestSpec
from octavo.v1 import kvmanager_pb2
from services.kvmanager.codec import decode_submission
from services.kvmanager.driver import Driver
from services.rpc.columns import pack_int32
from services.state.pins import PinStore, StoredPin
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
AWAY_SECONDS = 1.0


class PinKeeper:
    """Looks again and again at which pins there are, so that none is missed, however it came or went."""

    def __init__(
        self, driver: Driver, store: PinStore, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._store = store
        self._group = group
        self._clock = clock
        self._loaded = False
        self._noted: dict[str, Pin | None] = {}
        """What the store may have, by id; None where it is not known what that is."""
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if await self.keep() else AWAY_SECONDS)

    async def keep(self) -> bool:
        """Brings the store up to date. Returns whether it is there."""
        async with self._one_at_a_time:
            try:
                if not self._loaded:
                    await self._load()
                await self._write()
            except StateUnavailable:
                self.doubt()
                return False
        return True

    def doubt(self) -> None:
        """The store may have lost what was noted there."""
        self._noted = dict.fromkeys(self._noted)

    async def _load(self) -> None:
        for stored in await self._store.list(self._group):
            self._noted[stored.pin_id] = None
            try:
                spec = decode_order(stored.order)
            except (DecodeError, ValueError) as error:
                log.error("a pin in the state store makes no sense", extra={"pin": stored.pin_id, "reason": str(error)})
                continue
            self._driver.restore_pin(spec, stored.seconds_left)
        self._loaded = True

    async def _write(self) -> None:
        pins = {pin.pin_id: pin for pin in self._driver.manager.pins if pin.expires is not None}
        for pin_id, pin in pins.items():
            if self._noted.get(pin_id) is not pin:
                self._noted[pin_id] = None
                await self._store.put(self._group, self._encode(pin))
                self._noted[pin_id] = pin
        for pin_id in self._noted.keys() - pins.keys():
            await self._store.remove(self._group, pin_id)
            del self._noted[pin_id]

    def _encode(self, pin: Pin) -> StoredPin:
        assert pin.expires is not None
        return StoredPin(pin.pin_id, pin.expires - self._clock(), encode_order(pin.spec))


def encode_order(spec: RequestSpec) -> bytes:
    """All that a pin's prefix is computed from."""
    assert spec.pin is not None
    spans = [
        kvmanager_pb2.ScopeSpan(num_tokens=num_tokens, salt=scope.salt, narrowness=scope.narrowness, owner=scope.owner)
        for num_tokens, scope in spec.spans
    ]
    submission = kvmanager_pb2.Submission(
        prompt_token_ids=pack_int32(spec.prompt_token_ids),
        spans=spans,
        tenant=spec.tenant,
        n=1,
        pin=kvmanager_pb2.PinOrder(pin_id=spec.pin.pin_id, ttl_us=round(spec.pin.ttl * 1e6)),
    )
    return bytes(submission.SerializeToString(deterministic=True))


def decode_order(order: bytes) -> RequestSpec:
    """Raises DecodeError or ValueError where it is none."""
    spec = decode_submission(kvmanager_pb2.Submission.FromString(order), session=0, now=0.0)
    if spec.pin is None or not spec.prompt_token_ids:
        raise ValueError("it has no prompt, or no pin")
    return spec
