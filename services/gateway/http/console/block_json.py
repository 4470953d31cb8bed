"""The physical map as the page reads it: columns of numbers, so that 100,000 blocks are one small message."""

from __future__ import annotations

from base64 import b64encode
from struct import pack
from typing import Any

from octavo.v1 import common_pb2, monitoring_pb2

IDENTITY_BYTES = 8


class BlockEncoder:
    """Encodes one stream of changes: names of owners are sent once, then numbers stand for them.

    Columns are little-endian and base64: int32 ``ids``, uint16 ``refs``, ``fills`` and ``owners`` (an index into all
    ``newOwners`` up to now; 0 is nobody), uint8 ``cached``, 8 bytes each of ``identities`` (zeros where there is none).
    Blocks of the host tier are counted on after those of the device. A snapshot leaves free blocks out.
    """

    def __init__(self) -> None:
        self._owners = {"": 0}

    def encode(self, message: monitoring_pb2.WatchBlocksResponse) -> dict[str, Any]:
        """One message."""
        if message.removed:
            return {"executor": message.executor, "removed": True}
        blocks = [block for block in message.blocks if not message.snapshot or block.reference_count or block.cached]
        known = len(self._owners)
        owners = [self._owners.setdefault(block.owner, len(self._owners)) for block in blocks]
        count, num_device = len(blocks), message.num_device_blocks
        return {
            "executor": message.executor,
            "snapshot": message.snapshot,
            "device": num_device,
            "host": message.num_host_blocks,
            "newOwners": list(self._owners)[known:],
            "ids": _column(
                "i", [block.block_id + num_device * (block.tier == common_pb2.TIER_HOST) for block in blocks]
            ),
            "refs": _column("H", [min(block.reference_count, 0xFFFF) for block in blocks]),
            "fills": _column("H", [block.fill for block in blocks]),
            "owners": _column("H", owners),
            "cached": _column("B", [block.cached for block in blocks]),
            "identities": _text(
                pack(
                    f"{IDENTITY_BYTES}s" * count,
                    *(block.identity_prefix for block in blocks),
                )
            ),
        }


def _column(kind: str, values: list[int]) -> str:
    return _text(pack(f"<{len(values)}{kind}", *values))


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


class TableEncoder:
    """Encodes which request holds which blocks, as changes since the last time."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], int] = {}
        self._sent: dict[int, tuple[dict[str, Any], list[bytes]]] = {}
        self._next_key = 0

    def encode(self, response: monitoring_pb2.ListRequestsResponse) -> dict[str, Any] | None:
        """What has changed; None where nothing has.

        ``requests`` are those that are new or changed: a number that stands for the request on this stream, who it is,
        where it is, and each sequence as ``[kept, rest]``: so many entries of its block table as before, then the rest
        (int32 column, base64). ``gone`` are the numbers of those that hold nothing any more.
        """
        live = {
            (view.tenant, view.request_id): view
            for view in response.requests
            if view.state in (monitoring_pb2.REQUEST_STATE_RUNNING, monitoring_pb2.REQUEST_STATE_SWAPPED)
        }
        gone = [self._forget(name) for name in list(self._keys) if name not in live]
        changed = [change for name, view in live.items() if (change := self._change(name, view)) is not None]
        return {"requests": changed, "gone": gone} if changed or gone else None

    def _forget(self, name: tuple[str, str]) -> int:
        key = self._keys.pop(name)
        del self._sent[key]
        return key

    def _change(self, name: tuple[str, str], view: monitoring_pb2.RequestView) -> dict[str, Any] | None:
        if name not in self._keys:
            self._keys[name] = self._next_key
            self._next_key += 1
        key = self._keys[name]
        where = {
            "key": key,
            "id": view.request_id,
            "tenant": view.tenant,
            "executor": view.executor,
            "host": view.state == monitoring_pb2.REQUEST_STATE_SWAPPED,
        }
        tables = [sequence.block_ids for sequence in view.sequences]
        known_where, known_tables = self._sent.get(key, ({}, []))
        if (known_where, known_tables) == (where, tables):
            return None
        self._sent[key] = where, tables
        before = known_tables + [b""] * (len(tables) - len(known_tables))
        return where | {"tables": [_table_change(old, new) for old, new in zip(before, tables, strict=False)]}


def _table_change(old: bytes, new: bytes) -> tuple[int, str]:
    kept = _common_entries(old, new)
    return kept, _text(new[4 * kept :])


def _common_entries(old: bytes, new: bytes) -> int:
    """Entries at the beginning that both have; a table mostly grows at its end."""
    if new.startswith(old):
        return len(old) // 4
    shorter = min(len(old), len(new)) // 4
    return next((i for i in range(shorter) if old[4 * i : 4 * i + 4] != new[4 * i : 4 * i + 4]), shorter)
