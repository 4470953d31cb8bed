"""docs/state.md says what is in Redis and what rights it takes: that is true."""

from __future__ import annotations

import re

import pytest

from tests.services.e2e.processes import ROOT
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import OpenStore
from tests.services.state.test_unavailable import HOLDER, READS, SECRET, WRITES, Watched

DOCUMENT = (ROOT / "docs" / "state.md").read_text("utf-8")
NAMES = {
    "GROUP": r"[^{}\s]{1,200}",
    "MODEL": r"[^{}\s]{1,200}",
    "HASH": "[0-9a-f]{64}",
    "TENANT": r"[^{}:\s]+",
    "NAME": r"[^{}:\s]+",
    "GATEWAY": r"[^{}\s]+",
}


def documented_keys() -> dict[re.Pattern[str], str]:
    """Types of keys by what they look like."""
    rows = re.findall(r"^\| `(octavo:\S+)` \| ([a-z ]+) \|", DOCUMENT, re.MULTILINE)
    patterns = {}
    for key, kind in rows:
        pattern = re.escape(key)
        for name, form in NAMES.items():
            pattern = pattern.replace(name, form)
        patterns[re.compile(pattern)] = {"sorted set": "zset"}.get(kind, kind)
    return patterns


async def test_every_key_is_documented_with_its_type(
    redis_server: RedisServer, open_redis: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(await open_redis(redis_server.url), caplog)
    await watched.fill()
    for operation in WRITES.values():
        await operation(watched.store)
    await watched.store.leadership.lead("a group {x}, with: anything " + "é" * 100, HOLDER, 60)
    documented, seen = documented_keys(), set()
    for key in redis_server.client.keys("*"):
        matching = [pattern for pattern in documented if pattern.fullmatch(key)]
        assert len(matching) == 1, f"{key} is like {len(matching)} of the documented keys"
        assert redis_server.client.type(key) == documented[matching[0]], key
        seen.add(matching[0])
    assert seen == set(documented)


async def test_the_documented_rights_are_enough(
    redis_server: RedisServer, open_redis: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    rule = re.search(r"^ACL SETUSER (octavo) (.*)$", DOCUMENT, re.MULTILINE)
    assert rule is not None
    user, rights = rule.groups()
    redis_server.client.execute_command("ACL", "SETUSER", user, *rights.replace("PASSWORD", SECRET).split())
    try:
        store = await open_redis(redis_server.url.replace("//", f"//{user}@"), SECRET)
        watched = Watched(store, caplog)
        await watched.fill()
        for operation in (WRITES | READS).values():
            await operation(store)
        assert watched.changes == []
    finally:
        redis_server.client.execute_command("ACL", "DELUSER", user)
