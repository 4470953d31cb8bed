"""Tenants and what they have used, in files: for one machine, without Redis.

The tenants file is JSON, which may also be written by hand or by a tool; ``octavo tenant`` writes it. Usage is in a
second file beside it, with ``.usage`` at the end of its name. Each is replaced as a whole, so a reader never sees half
of one; writers take turns by a lock on a third file, with ``.lock``.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from gateway.tenants import Tenant
from services.state.store import StateStore, StateUnavailable
from services.state.tenant_records import BadRecord, decode_tenant, encode_tenant
from services.state.tenants import Change, TenantStore, TenantUsage, Usage, UsageBatch, UsageStore

SCHEMA = 1

MAX_WRITERS = 64
"""How many gateways' last batches are remembered, of those that wrote last."""

R = TypeVar("R")


def tenant_stores(store: StateStore, path: str | None) -> tuple[TenantStore, UsageStore]:
    """Where tenants are kept, and what they use.

    Args:
        store: Keeps both.
        path: Of a file that keeps the tenants instead; and what they use, unless the store outlives the process.
    """
    if path is None:
        return store.tenants, store.usage
    file = Path(path)
    return TenantsFile(file), UsageFile(file, time.time) if store.limits is None else store.usage


class TenantsFile:
    """Tenants in a file. One that is not there yet has none, until a tenant is added; one that was there is to stay."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_there = False

    async def version(self) -> str:
        return await asyncio.to_thread(self._version)

    async def all(self) -> list[Tenant]:
        return await asyncio.to_thread(self._read)

    async def change(self, name: str, change: Change) -> Tenant:
        return await asyncio.to_thread(self._change, name, change)

    def _version(self) -> str:
        try:
            about = self._path.stat()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self._was_there:
                return "none"
            raise StateUnavailable(f"{self._path}: {error.strerror}") from error
        self._was_there = True
        return f"{about.st_ino} {about.st_mtime_ns} {about.st_size}"

    def _read(self) -> list[Tenant]:
        content = _read_json(self._path)
        tenants = content.get("tenants", {})
        if content.get("schema", SCHEMA) != SCHEMA or not isinstance(tenants, dict):
            raise StateUnavailable(f"{self._path}: not a tenants file of schema {SCHEMA}")
        try:
            return [decode_tenant(name, record) for name, record in tenants.items()]
        except BadRecord as error:
            raise StateUnavailable(f"{self._path}: {error}") from error

    def _change(self, name: str, change: Change) -> Tenant:
        path = self._path.resolve()  # a link stays a link
        with _writing(path):
            tenants = {tenant.name: tenant for tenant in self._read()}
            changed = tenants[name] = change(tenants.get(name))
            records = {each.name: encode_tenant(each) for each in tenants.values()}
            _replace(path, {"schema": SCHEMA, "tenants": records})
            return changed


class UsageFile:
    """Totals in a file beside the tenants' one."""

    def __init__(self, tenants_path: Path, now: Callable[[], float]) -> None:
        tenants_path = tenants_path.resolve()
        self._path = tenants_path.with_name(f"{tenants_path.name}.usage")
        self._now = now

    async def add(self, batch: UsageBatch) -> None:
        await asyncio.to_thread(self._add, batch)

    async def of(self, tenant: str) -> TenantUsage:
        content = await asyncio.to_thread(_read_json, self._path)
        found = content.get("tenants", {}).get(tenant, {"since": None, "apps": {}})
        return TenantUsage(found["since"], {app: Usage(**usage) for app, usage in found["apps"].items()})

    def _add(self, batch: UsageBatch) -> None:
        with _writing(self._path):
            content = _read_json(self._path)
            numbers: dict[str, int] = content.get("batches", {})
            if numbers.pop(batch.writer, 0) >= batch.number:
                return
            numbers[batch.writer] = batch.number
            tenants = content.get("tenants", {})
            for (tenant, app), usage in batch.usage.items():
                apps = tenants.setdefault(tenant, {"since": self._now(), "apps": {}})["apps"]
                total = Usage(**apps.get(app, {}))
                total.add(usage)
                apps[app] = asdict(total)
            latest = dict(list(numbers.items())[-MAX_WRITERS:])
            _replace(self._path, {"schema": SCHEMA, "batches": latest, "tenants": tenants})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateUnavailable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StateUnavailable(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise StateUnavailable(f"{path}: not a JSON object")
    return content


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Only one process at a time is in here."""
    try:
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateUnavailable(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Puts new content in the place of the old one at once, readable by its owner alone."""
    try:
        # Made with mode 0600.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                json.dump(content, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(file.name)
                raise
    except OSError as error:
        raise StateUnavailable(f"{path}: {error.strerror}") from error
