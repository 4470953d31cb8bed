"""The prefix directory: which groups (a KV manager and its executors) have which blocks cached, for a gateway's choice.

It is a hint. What it says may be old, incomplete, or wrong about a block with a chance of one in 2^64 for each pair; a
wrong hint costs a prefill that another group could have saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

LEASE_SECONDS = 15.0
"""A group that neither publishes nor refreshes for this time has nothing any more; refresh three times as often."""

IDENTITY_BYTES = 8
"""So many bytes of a block's identity, from its start, are kept and compared. None is shorter."""

MAX_BLOCKS = 1 << 20
"""Most blocks of one group and model that are held; more are not taken."""


class PrefixDirectory(Protocol):
    """Sets of block identities, by model and group."""

    async def publish(self, model: str, group: str, added: Sequence[bytes], removed: Sequence[bytes]) -> bool:
        """Notes what a group's cache has and has no longer, and renews its lease. A block in both is there.

        Returns:
            Whether the directory still had what was published before. If not (this is the first time, or the lease ran
            out, or the store lost it), everything that is cached is to be published anew.

        Raises:
            StateUnavailable: publish everything anew when it is back.
        """

    async def refresh(self, model: str, group: str) -> bool:
        """Renews a group's lease.

        Returns:
            As `publish` does; where it is False nothing was renewed.

        Raises:
            StateUnavailable: the lease may run out.
        """

    async def clear(self, model: str, group: str) -> None:
        """Forgets all blocks of a group and its lease.

        Raises:
            StateUnavailable: they may be there until the lease ends.
        """

    async def longest(self, model: str, identities: Sequence[bytes]) -> Mapping[str, int]:
        """How many blocks from the start of a prompt each group has.

        Args:
            identities: of the prompt's blocks, in order.

        Returns:
            By group; a group that has not even the first one, or whose lease ran out, is absent. Of a long prompt it
            may be less by up to a 128th of its blocks.

        Raises:
            StateUnavailable: nobody knows.
        """
