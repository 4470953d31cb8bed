"""The groups of executors that are looked at, and what their executors are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.kvmanager_link import KVManagerLink


@dataclass(frozen=True, slots=True)
class Group:
    """The executors behind one KV manager.

    Attributes:
        link: The way to it.
        prefix: Of its executors' names, so that no two groups have an executor of one name.
    """

    link: KVManagerLink
    prefix: str

    def named(self, executor: str) -> str:
        """The executor's name among all groups; of no executor, nothing."""
        return executor and self.prefix + executor


def groups_of(links: Sequence[KVManagerLink]) -> list[Group]:
    """One group keeps its executors' addresses as names; those of several get the group's number, such as ``2/a:1``."""
    if len(links) == 1:
        return [Group(links[0], "")]
    return [Group(link, f"{number}/") for number, link in enumerate(links, 1)]
