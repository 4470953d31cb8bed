"""What a mix is made of: its setting, and what callers order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvmanager.accounts import Quota
from kvmanager.cost_model import Preemption
from kvmanager.spec import Scope
from kvmanager.step import Speeds

TENANTS = ("acme", "beta", "gamma")
SCOPES = (
    Scope(b"acme", "acme", 1),
    Scope(b"acme", "acme", 1),
    Scope(b"acme/app", "acme", 2),
    Scope(b"beta", "beta", 1),
    Scope(b"docs", "shared:docs", 0),
)
SPEEDS = (
    None,
    Speeds(100.0, 1000.0, 1000.0, 1000.0),  # swapping is cheaper
    Speeds(1000.0, 1.0, 1.0, 1000.0),  # recomputing is
    Speeds(100.0, 100.0, 100.0, 100.0),  # it depends
)
METHODS = ("one", "samples", "best_of", "beams")


@dataclass(frozen=True)
class Setting:
    """What stays the same while a mix lasts. `watched`: the map and the KV events are followed, too."""

    num_blocks: int
    num_host_blocks: int
    block_size: int
    num_executors: int
    max_batched_tokens: int
    max_sequences: int
    prefix_caching: bool
    policy: str
    preemption: Preemption
    speeds: Speeds | None
    quotas: bool
    watched: bool
    seed: int


@dataclass(frozen=True)
class Order:
    """What somebody submits; the rest is made up."""

    own_length: int
    common: int
    method: str
    width: int
    max_tokens: int
    min_tokens: int
    scopes: tuple[Scope, ...]
    stops: bool
    lifetime: float | None
    priority: int


@dataclass(frozen=True)
class Burst:
    """Requests that arrive together and begin alike.

    Attributes:
        orders: of each, but for the common beginning.
        common: tokens that all begin with.
        known: of these tokens, so many at most were in an earlier prompt too.
        scheduled: steps that are built at once.
        leaving: which of them are aborted then, while their first chunks are under way.
    """

    orders: tuple[Order, ...]
    common: int
    known: int
    scheduled: int
    leaving: tuple[int, ...]


def some_quotas(rng: random.Random, num_blocks: int) -> dict[str, Quota]:
    """Quotas that leave everybody something."""
    reserved = rng.randrange(0, num_blocks // 3 + 1)
    limit = rng.randrange(max(2, num_blocks // 2), num_blocks + 1)
    return {"acme": Quota(reserved_blocks=reserved, weight=2.0), "beta": Quota(max_blocks=limit)}


def other_quotas(rng: random.Random, num_blocks: int) -> dict[str, Quota]:
    """Quotas that may leave somebody nothing."""
    quotas = {}
    for tenant in rng.sample(TENANTS, rng.randrange(len(TENANTS) + 1)):
        limit = rng.choice([0, rng.randrange(1, num_blocks + 1)])
        reserved = rng.choice([0, rng.randrange(1 + (limit or num_blocks))])
        quotas[tenant] = Quota(reserved, limit, rng.choice([0.5, 1.0, 3.0]))
    return quotas
