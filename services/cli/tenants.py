# ruff: noqa: RUF009 - setting() returns a dataclass field
"""``octavo tenant``: who may use the service, and how much."""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from gateway.api_keys import ApiKey, new_key
from gateway.scope import DEFAULT_NAME, ScopeLevel
from gateway.tenants import Tenant
from services.cli.errors import REFUSED, UNUSABLE, CommandError
from services.cli.options import expand
from services.config import EMBEDDED_STATE, ConfigError, StateConfig, setting

if TYPE_CHECKING:
    from services.state.tenants import TenantStore, UsageStore

app = typer.Typer(help="Say who may use the service, and how much.", no_args_is_help=True, rich_markup_mode=None)

Scope = Literal["shared", "tenant", "app", "request"]

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where tenants are kept: what the gateway was told is found in its environment, too."""

    state: str = setting(
        EMBEDDED_STATE,
        "The state store that gateways share, as a redis:// URL.",
        envvar=["OCTAVO_STATE", "OCTAVO_GATEWAY_STATE"],
    )
    state_password_file: str | None = setting(
        None,
        "File with the password of the state store; $OCTAVO_STATE_PASSWORD when absent.",
        envvar=["OCTAVO_STATE_PASSWORD_FILE", "OCTAVO_GATEWAY_STATE_PASSWORD_FILE"],
    )
    tenants_file: str | None = setting(
        None, "File with the tenants.", envvar=["OCTAVO_TENANTS_FILE", "OCTAVO_GATEWAY_TENANTS_FILE"]
    )

    def __post_init__(self) -> None:
        if self.state == EMBEDDED_STATE and self.tenants_file is None:
            raise ConfigError("say where the tenants are kept: --state redis://HOST:PORT/0 or --tenants-file PATH")
        self.state_config.check_state()

    @property
    def state_config(self) -> StateConfig:
        """Of the state store alone."""
        return StateConfig(state=self.state, state_password_file=self.state_password_file)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a tenant may have. Absent: as it is, which is no limit for a new one."""

    requests_per_minute: int | None = setting(None, "Requests a minute; 0 is no limit, here and below.")
    tokens_per_minute: int | None = setting(None, "Tokens a minute, of prompts and answers together.")
    max_concurrent: int | None = setting(None, "Requests that run or wait at the same time.")
    reserved_blocks: int | None = setting(None, "Of each executor's blocks, those that nobody else gets.")
    max_blocks: int | None = setting(None, "Most blocks of each executor at once.")
    weight: float | None = setting(None, "Its part of what is not reserved, beside the others' parts; 1 at first.")
    namespace: list[str] | None = setting(
        None, "A shared cache namespace to join, which all its members can read; may be given several times."
    )

    @property
    def given(self) -> dict[str, Any]:
        """What is not absent, by field of `Tenant`."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, [], ())}
        namespaces = values.pop("namespace", None)
        return values if namespaces is None else values | {"namespaces": frozenset(namespaces)}


_Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@expand
def add(
    name: _Name,
    place: Place,
    limits: Limits,
    app: Annotated[str, typer.Option(help="Which of the tenant's applications the key is for.")] = DEFAULT_NAME,
    widest_scope: Annotated[
        Scope, typer.Option(help="The widest cache scope that the key may ask for; shared is all that the tenant may.")
    ] = "shared",
    as_json: _Json = False,
) -> None:
    """Add a tenant, or one more key for it, and print the key: it can't be shown again."""
    text, key_id, secret_hash = new_key(secrets.randbits)
    key = ApiKey(key_id, secret_hash, app, ScopeLevel[widest_scope.upper()], int(time.time()))

    def change(known: Tenant | None) -> Tenant:
        if known is not None and limits.given:
            raise CommandError(
                f"there is a tenant {name!r} already: change its limits with 'octavo tenant limit'", REFUSED
            )
        with _checked():
            tenant = known or Tenant(name, **limits.given)
            return replace(tenant, keys=(*tenant.keys, key))

    _on_tenants(place, lambda tenants, _: tenants.change(name, change))
    if as_json:
        _print_json({"tenant": name, "app": app, "key_id": key_id, "widest_scope": widest_scope, "key": text})
        return
    typer.echo(f"Key {key_id} of tenant {name}, app {app}; it is not shown again:", err=True)
    typer.echo(text)


@app.command()
@expand
def limit(
    name: _Name,
    place: Place,
    limits: Limits,
    leave_namespace: Annotated[
        list[str] | None, typer.Option(help="A shared namespace to leave; may be given several times.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Change what a tenant may have. Gateways know of it within seconds."""
    left = frozenset(leave_namespace or ())
    if not limits.given and not left:
        raise ConfigError("say what to change, such as --requests-per-minute 60 (0 lifts a limit)")

    def change(known: Tenant | None) -> Tenant:
        tenant = _existing(name, known)
        namespaces = tenant.namespaces | limits.given.get("namespaces", frozenset())
        if missing := left - namespaces:
            raise CommandError(f"tenant {name!r} is not in namespace {min(missing)!r}", REFUSED)
        with _checked():
            return replace(tenant, **limits.given | {"namespaces": namespaces - left})

    tenant = _on_tenants(place, lambda tenants, _: tenants.change(name, change))
    _print_json(_about(tenant)) if as_json else typer.echo(_describe(tenant))


@app.command("list")
@expand
def list_tenants(place: Place, as_json: _Json = False) -> None:
    """List tenants with their limits and keys."""
    tenants = _on_tenants(place, lambda tenants, _: tenants.all())
    if as_json:
        _print_json([_about(tenant) for tenant in tenants])
        return
    for tenant in sorted(tenants, key=lambda each: each.name):
        typer.echo(_describe(tenant))
        for key in tenant.keys:
            state = f"since {_day(key.created_at)}" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
            typer.echo(f"  {key.key_id}  app {key.app}, widest scope {key.widest_scope.name.lower()}, {state}")


@app.command()
@expand
def revoke(
    which: Annotated[str, typer.Argument(metavar="NAME|KEY_ID", help="A tenant, with all its keys, or one key.")],
    place: Place,
    as_json: _Json = False,
) -> None:
    """Revoke a key, or all keys of a tenant. Gateways refuse them within seconds; what runs is finished."""

    async def find_and_revoke(tenants: "TenantStore", _: "UsageStore") -> tuple[str, list[str]]:
        name, key_id = _find(await tenants.all(), which)
        revoked: list[str] = []

        def change(known: Tenant | None) -> Tenant:
            tenant = _existing(name, known)
            changed = tenant.revoke(int(time.time()), key_id)
            revoked[:] = [new.key_id for old, new in zip(tenant.keys, changed.keys, strict=True) if old != new]
            if not revoked:
                raise CommandError(f"there is nothing left to revoke of {which!r}", REFUSED)
            return changed

        await tenants.change(name, change)
        return name, revoked

    name, revoked = _on_tenants(place, find_and_revoke)
    if as_json:
        _print_json({"tenant": name, "revoked": revoked})
    else:
        typer.echo(f"revoked of tenant {name}: {', '.join(revoked)}")


@app.command()
@expand
def usage(name: _Name, place: Place, as_json: _Json = False) -> None:
    """Say what a tenant has used, by app: requests, tokens, and how many requests were refused."""

    async def look(tenants: "TenantStore", usage: "UsageStore") -> Any:
        used = await usage.of(name)
        if used.since is None and name not in {tenant.name for tenant in await tenants.all()}:
            raise _no_tenant(name)
        return used

    used = _on_tenants(place, look)
    apps = {app: asdict(counts) for app, counts in sorted(used.by_app.items())}
    if as_json:
        since = None if used.since is None else _time(used.since).isoformat()
        _print_json({"tenant": name, "since": since, "apps": apps})
    elif used.since is None:
        typer.echo(f"tenant {name} has used nothing yet")
    else:
        typer.echo(f"tenant {name} since {_time(used.since):%Y-%m-%d %H:%M:%S} UTC")
        _print_table(apps)


# --- What they share ------------------------------------------------------------------------------------------------


def _on_tenants(place: Place, use: "Callable[[TenantStore, UsageStore], Awaitable[R]]") -> R:
    """Opens the stores and uses them.

    Raises:
        CommandError: They can't be read or written.
    """
    from services.state.store import StateUnavailable, open_store
    from services.state.tenants_file import tenant_stores

    # What goes wrong is said once, by the error.
    logging.getLogger().addHandler(logging.NullHandler())

    async def run() -> R:
        store = open_store(place.state, place.state_config.state_password())
        await store.start()
        try:
            return await use(*tenant_stores(store, place.tenants_file))
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StateUnavailable as error:
        raise CommandError(f"tenants can't be read or written: {error}", UNUSABLE) from error


@contextmanager
def _checked() -> Iterator[None]:
    """Says what no tenant can have as the command's error."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _existing(name: str, tenant: Tenant | None) -> Tenant:
    if tenant is None:
        raise _no_tenant(name)
    return tenant


def _no_tenant(name: str) -> CommandError:
    return CommandError(f"there is no tenant {name!r}", REFUSED)


def _find(tenants: Sequence[Tenant], which: str) -> tuple[str, str | None]:
    """A tenant's name, and a key's id where it is that which is meant."""
    named = [(tenant.name, None) for tenant in tenants if tenant.name == which]
    found = named + [(tenant.name, key.key_id) for tenant in tenants for key in tenant.keys if key.key_id == which]
    if not found:
        raise CommandError(f"there is no tenant and no key {which!r}", REFUSED)
    if len(found) > 1:
        raise CommandError(f"{which!r} is a tenant and a key", REFUSED)
    return found[0]


def _about(tenant: Tenant) -> dict[str, Any]:
    """A tenant as JSON shows it: all but the hashes."""
    about: dict[str, Any] = {each.name: getattr(tenant, each.name) for each in fields(tenant)}
    about["namespaces"] = sorted(tenant.namespaces)
    about["keys"] = [
        {
            "key_id": key.key_id,
            "app": key.app,
            "widest_scope": key.widest_scope.name.lower(),
            "created_at": _time(key.created_at).isoformat(),
            "revoked_at": None if key.revoked_at is None else _time(key.revoked_at).isoformat(),
        }
        for key in tenant.keys
    ]
    return about


def _describe(tenant: Tenant) -> str:
    limits = {
        "requests a minute": tenant.requests_per_minute,
        "tokens a minute": tenant.tokens_per_minute,
        "requests at a time": tenant.max_concurrent,
        "blocks reserved": tenant.reserved_blocks,
        "blocks at most": tenant.max_blocks,
    }
    parts = [f"{value} {what}" for what, value in limits.items() if value] or ["no limits"]
    parts += [f"weight {tenant.weight:g}"] if tenant.weight != 1 else []
    parts += [f"in {', '.join(sorted(tenant.namespaces))}"] if tenant.namespaces else []
    return f"{tenant.name}: {', '.join(parts)}"


def _print_table(apps: Mapping[str, Mapping[str, int]]) -> None:
    rows = [["app", "requests", "prompt", "cached", "generated", "refused"]]
    rows += [[app, *(str(count) for count in counts.values())] for app, counts in apps.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        typer.echo("  ".join([first.ljust(widths[0]), *cells]))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _day(seconds: float) -> str:
    return f"{_time(seconds):%Y-%m-%d}"
