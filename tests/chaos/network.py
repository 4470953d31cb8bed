"""What networks do to the connections between the processes, at random from a seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.chaos.cluster import SERVICES, Cluster, Service
from tests.tcp_proxy import ThreadedTcpProxy

Kind = Literal["delay", "freeze", "partition", "reset"]
KINDS: tuple[Kind, ...] = ("delay", "freeze", "partition", "reset")


@dataclass(frozen=True)
class NetworkFault:
    """Something that happens to all connections to one process.

    Attributes:
        kind: Data comes late; nothing passes, and then all of it does; nothing passes, and then connections are reset;
            or they are reset at once.
        to: The kind of process that they lead to.
        which: Its number, where there are several.
        delay: Seconds after the fault before.
        seconds: How long it lasts.
    """

    kind: Kind
    to: Service
    which: int
    delay: float
    seconds: float


def plan(rng: random.Random, mean_delay: float) -> list[NetworkFault]:
    """Each kind to each process, in random order."""
    what = [(kind, service, which) for kind in KINDS for service in SERVICES for which in (0, 1)]
    what = [each for each in what if each[1:] != ("redis", 1)]
    rng.shuffle(what)
    return [
        NetworkFault(
            kind,
            service,
            which,
            rng.uniform(0.3, 2 * mean_delay - 0.3),
            # A partition lasts longer than keepalive needs to notice it.
            rng.uniform(11.0, 13.0) if kind == "partition" else rng.uniform(0.5, 3.0),
        )
        for kind, service, which in what
    ]


class Network:
    """Does what is planned, in a cluster with proxies.

    Attributes:
        counts: Faults by where connections lead, and kind.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.counts: dict[Service, Counter[Kind]] = {service: Counter() for service in SERVICES}

    async def run(self, faults: Sequence[NetworkFault]) -> None:
        """Returns when all are over."""
        under_way = []
        for fault in faults:
            await asyncio.sleep(fault.delay)
            proxy = self._cluster.proxies.of(fault.to)[fault.which]
            self.counts[fault.to][fault.kind] += 1
            under_way.append(asyncio.create_task(_happen(fault, proxy)))
        await asyncio.gather(*under_way)


async def _happen(fault: NetworkFault, proxy: ThreadedTcpProxy) -> None:
    if fault.kind == "reset":
        proxy.reset()
        return
    if fault.kind == "delay":
        proxy.set_delay(0.05)
        await asyncio.sleep(fault.seconds)
        proxy.set_delay(0.0)
        return
    proxy.freeze()
    await asyncio.sleep(fault.seconds)
    if fault.kind == "freeze":
        proxy.thaw()
    else:
        proxy.heal()
