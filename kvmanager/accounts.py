"""Whose blocks they are: what each tenant may have, has, and has most of above its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvmanager.block import BlockList


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may have of each executor's device pool.

    Attributes:
        reserved_blocks: nobody else gets these.
        max_blocks: most blocks charged to it at once; 0 for no limit.
        weight: its part of what is not reserved, and of the policy `fair`'s service, relative to the others'.
    """

    reserved_blocks: int = 0
    max_blocks: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.reserved_blocks < 0 or self.max_blocks < 0:
            raise ValueError("reserved_blocks and max_blocks must not be negative")
        if self.max_blocks and self.reserved_blocks > self.max_blocks:
            raise ValueError(f"reserved_blocks is {self.reserved_blocks}, above max_blocks, {self.max_blocks}")
        if not self.weight > 0:
            raise ValueError(f"weight is {self.weight}; it must be above 0")


class Account:
    """What one owner has in one pool.

    Attributes:
        quota: what it may have.
        promised: its reserved blocks, as far as the pool has so many.
        reserved, max_blocks: what holds. That is the quota, but while quotas change the wider of before and after.
        num_charged: its referenced blocks.
        num_pinned: blocks that its pins hold, or will once they are computed.
        cached: its unreferenced blocks with content, the one unused for longest first.
    """

    __slots__ = ("cached", "max_blocks", "num_charged", "num_pinned", "owner", "promised", "quota", "reserved")

    def __init__(self, owner: str, quota: Quota, promised: int) -> None:
        self.owner = owner
        self.quota = quota
        self.promised = promised
        self.reserved = promised
        self.max_blocks = quota.max_blocks
        self.num_charged = 0
        self.num_pinned = 0
        self.cached = BlockList()

    @property
    def num_unused(self) -> int:
        """Reserved blocks that it has no use for now."""
        return max(0, self.reserved - self.num_charged)

    @property
    def room(self) -> int | None:
        """Blocks until its limit; None without one."""
        return self.max_blocks - self.num_charged if self.max_blocks else None

    def change(self, quota: Quota, promised: int) -> None:
        """It may have something else. Until `settle` that neither takes from others nor is taken from it."""
        self.quota, self.promised = quota, promised
        self.reserved = min(self.reserved, promised)
        limits = (self.max_blocks, quota.max_blocks)
        self.max_blocks = max(limits) if all(limits) else 0

    def settle(self) -> None:
        """What it may have is what holds."""
        self.reserved, self.max_blocks = self.promised, self.quota.max_blocks


Charges = Counter[Account]
"""Blocks that each account would be charged with."""


class Accounts:
    """All accounts of one pool.

    Where the reservations exceed the pool, each is cut in proportion.

    Args:
        quotas: by owner; others have no reservation, no limit and weight 1.
    """

    def __init__(self, num_blocks: int, quotas: Mapping[str, Quota]) -> None:
        self._num_blocks = num_blocks
        self._accounts: dict[str, Account] = {}
        self.change(quotas)
        self.settle()

    def change(self, quotas: Mapping[str, Quota]) -> None:
        """Owners may have something else from here on.

        What requests are promised from now on is made of that. What holds is the wider of before and after: limits
        that shrink, and reservations that grow, wait for `settle`. So whatever was promised a request can be kept.
        """
        self._quotas = quotas
        total = sum(quota.reserved_blocks for quota in quotas.values())
        self._scale = min(1.0, self._num_blocks / total) if total else 1.0
        self.changing = True
        """What holds is not yet what owners may have."""
        for account in self._accounts.values():
            quota = quotas.get(account.owner, Quota())
            account.change(quota, self._promise(quota))
        for owner, quota in quotas.items():
            if quota.reserved_blocks:
                self[owner]  # nobody is promised what is reserved for somebody who was not here yet
        self._add_up()

    def settle(self) -> None:
        """What owners may have is what holds."""
        for account in self._accounts.values():
            account.settle()
        self.changing = False
        self._add_up()

    def _add_up(self) -> None:
        self._reserving = [account for account in self if account.reserved]
        self._num_reserved = sum(account.reserved for account in self._reserving)
        limited = any(quota.max_blocks for quota in self._quotas.values()) or any(each.max_blocks for each in self)
        self.unrestricted = not self._reserving and not limited
        """Nobody has a reservation or a limit: blocks are simply there or not."""

    def _promise(self, quota: Quota) -> int:
        return int(quota.reserved_blocks * self._scale)

    def __getitem__(self, owner: str) -> Account:
        account = self._accounts.get(owner)
        if account is None:
            quota = self._quotas.get(owner, Quota())
            account = self._accounts[owner] = Account(owner, quota, self._promise(quota))
            if self.changing:
                account.reserved = 0
        return account

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def kept_for_owners(self, charges: Mapping[Account, int]) -> int:
        """Reserved blocks that their owners would still have no use for after these charges: nobody else's to take."""
        return sum(max(0, each.num_unused - charges.get(each, 0)) for each in self._reserving)

    def guaranteed(self, owner: str, others: Mapping[str, int]) -> int:
        """Blocks that a request can have whatever is asked for beside it, and beside what is pinned.

        Args:
            owner: whom its answer is charged to.
            others: blocks of its prompt that are charged to other owners.
        """
        account = self[owner]
        kept = account.num_pinned
        for each in self:
            if each is not account:
                charged = others.get(each.owner, 0)
                kept += max(each.promised, each.num_pinned + charged) - charged
        most = self._num_blocks - kept
        num_others = sum(others.values())
        if num_others + account.promised - account.num_pinned > most:
            return 0  # the others' blocks would need what is reserved for the owner
        limit = self.limit(owner)
        return most if limit is None else min(most, limit + num_others)

    def limit(self, owner: str) -> int | None:
        """Most blocks that can ever be charged to the owner beside its pins; None without a limit."""
        account = self[owner]
        return max(0, account.quota.max_blocks - account.num_pinned) if account.quota.max_blocks else None

    @property
    def promises_fit(self) -> bool:
        """There are blocks for all that is promised to owners and to pins."""
        return sum(max(each.promised, each.num_pinned) for each in self) <= self._num_blocks

    def furthest_above_share(self) -> Account:
        """Who gives up a cached block first: the owner that has the most blocks above its share.

        A share is what is reserved, and a part by weight of what nobody has reserved, among those that have blocks.
        """
        having = [each for each in self._accounts.values() if each.cached or each.num_charged]
        if len(having) == 1:
            return having[0]
        part = (self._num_blocks - self._num_reserved) / sum(each.quota.weight for each in having)
        return max(
            (each for each in having if each.cached),
            key=lambda each: each.num_charged + len(each.cached) - each.reserved - part * each.quota.weight,
        )
