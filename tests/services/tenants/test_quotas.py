"""What the KV manager learns of tenants' blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.tenants import Tenant
from kvmanager.accounts import Quota
from services.kvmanager.tenant_quotas import TenantQuotas
from services.state.store import StateUnavailable
from services.state.tenants import EmbeddedTenants
from services.state.tenants_file import TenantsFile


async def test_records_count_beside_the_configuration_and_before_it() -> None:
    store, applied = EmbeddedTenants([Tenant("beta", requests_per_minute=5)]), list[Mapping[str, Quota]]()
    configured = {"acme": Quota(max_blocks=7), "beta": Quota(weight=3), "shared:docs": Quota(max_blocks=9)}
    quotas = TenantQuotas(store, configured, applied.append)
    await quotas.refresh()
    assert applied == [], "nothing has changed"
    await store.change("acme", lambda _: Tenant("acme", reserved_blocks=2, max_blocks=4))
    await quotas.refresh()
    await quotas.refresh()
    assert applied == [{**configured, "acme": Quota(2, 4)}]
    await store.change("acme", lambda acme: replace(acme or Tenant("acme"), reserved_blocks=0, max_blocks=0))
    await quotas.refresh()
    assert applied[1:] == [configured]


async def test_what_was_known_holds_while_the_tenants_can_t_be_read(tmp_path: Path) -> None:
    path, applied = tmp_path / "tenants.json", list[Mapping[str, Quota]]()
    file = TenantsFile(path)
    await file.change("acme", lambda _: Tenant("acme", max_blocks=4))
    quotas = TenantQuotas(file, {}, applied.append)
    await quotas.refresh()
    path.write_text("{")
    with pytest.raises(StateUnavailable):
        await quotas.refresh()
    path.unlink()
    with pytest.raises(StateUnavailable):
        await quotas.refresh()
    assert applied == [{"acme": Quota(max_blocks=4)}]
