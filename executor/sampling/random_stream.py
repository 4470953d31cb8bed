"""One random number for each position of each sequence, the same wherever and whenever it is drawn."""

from __future__ import annotations

import struct
from hashlib import blake2b

_MASK = (1 << 64) - 1


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53, that depends on the three arguments alone.

    A hash of the counter (as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) instead of a
    generator: there is no state that preemption, a move to another executor or a neighbour could change.

    Args:
        seed: of the request; taken modulo 2**64.
        sample_index: which of the request's sequences.
        position: of the token among its sequence's output tokens.
    """
    digest = blake2b(struct.pack("<QQQ", seed & _MASK, sample_index, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
