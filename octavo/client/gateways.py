"""The servers that a client may ask: one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from octavo.v1 import inference_pb2_grpc, monitoring_pb2_grpc

DEFAULT_ADDRESS = "127.0.0.1:50051"

Channel = TypeVar("Channel")


@dataclass(frozen=True)
class Gateway(Generic[Channel]):
    """One server.

    Attributes:
        stub: Of the service that generates.
        monitoring: Of the one that says what goes on.
    """

    channel: Channel
    stub: Any
    monitoring: Any

    def method(self, name: str) -> Any:
        """The call of that name, whichever of the two services has it."""
        return getattr(self.stub, name, None) or getattr(self.monitoring, name)


class Gateways(Generic[Channel]):
    """Several servers of one service. All calls go to one of them until it fails, then to the next.

    Args:
        addresses: One, or several in order of preference.
        open_channel: Makes a channel to an address.
    """

    def __init__(self, addresses: str | Sequence[str], open_channel: Callable[[str], Channel]) -> None:
        names = [addresses] if isinstance(addresses, str) else list(addresses)
        if not names:
            raise ValueError("address: at least one is needed")
        channels = [open_channel(name) for name in names]
        self._gateways = [
            Gateway(
                each,
                inference_pb2_grpc.GenerationServiceStub(each),
                monitoring_pb2_grpc.MonitoringServiceStub(each),
            )
            for each in channels
        ]
        self._current = 0

    def __len__(self) -> int:
        return len(self._gateways)

    @property
    def channels(self) -> list[Channel]:
        return [each.channel for each in self._gateways]

    @property
    def current(self) -> Gateway[Channel]:
        return self._gateways[self._current]

    def leave(self, gateway: Gateway[Channel]) -> None:
        """Goes on with the next one, unless another call, which failed as well, has done so already."""
        if gateway is self.current:
            self._current = (self._current + 1) % len(self._gateways)
